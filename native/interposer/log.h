/* Messages of the shim: to the file that GPULOOM_SHARE_LOG names, never to stdout or stderr. */
#ifndef GPULOOM_LOG_H
#define GPULOOM_LOG_H
void gls_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
#endif
