/* The parsers of profile.c alone, for tests and fuzzing under sanitizers.
 *
 * profiles names: for each line of standard input, a kernel's name, its signature (empty: it has none).
 * profiles find:  for each line "name TAB gx gy gz bx by bz shared", what the profile GPULOOM_SHARE_PROFILE says of that
 *                 kernel: "match sm compute dram duration_ns class". */
#define _GNU_SOURCE
#include "../profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void signature_of(const char *name) {
    char small[16], large[1024];
    size_t length = gls_signature(name, large, sizeof large);
    if (length != strlen(large)) abort();
    /* A buffer that is too small gives nothing, never half a name. */
    char *exact = malloc(length + 1);
    if (!exact || (length && (gls_signature(name, exact, length + 1) != length || strcmp(exact, large) != 0 ||
                              gls_signature(name, exact, length) != 0)))
        abort();
    free(exact);
    size_t short_length = gls_signature(name, small, sizeof small);
    if (short_length != 0 && short_length != length) abort();
    puts(large);
}

static void find(char *line) {
    char *numbers = strchr(line, '\t');
    unsigned g[3], b[3], shared;
    if (!numbers || sscanf(numbers, "%u %u %u %u %u %u %u", &g[0], &g[1], &g[2], &b[0], &b[1], &b[2], &shared) != 7) {
        puts("wrong");
        return;
    }
    *numbers = 0;
    struct gl_kernel kernel = {.compute = -1.0, .dram = -1.0};
    enum gls_match match = gls_profile_find(line, g, b, shared, &kernel);
    printf("%d %u %.4f %.4f %llu %d\n", (int)match, kernel.sm, kernel.compute, kernel.dram,
           (unsigned long long)kernel.duration_ns, (int)kernel.klass);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    int names = strcmp(argv[1], "names") == 0;
    if (!names && strcmp(argv[1], "find") != 0) return 2;
    gls_profile_load();
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) >= 0) {
        line[strcspn(line, "\n")] = 0;
        if (names) signature_of(line);
        else find(line);
    }
    free(line);
    printf("rows=%zu\n", gls_profile_size());
    return 0;
}
