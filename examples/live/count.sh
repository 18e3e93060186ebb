#!/bin/sh
# A job that is a shell script: it counts, and can be interrupted.  Usage: sh count.sh STATE-FILE [STEPS [SECONDS]]
set -eu
state=$1 steps=${2:-100} pace=${3:-0.1}

stop=0
trap 'stop=1' TERM    # the notice; [ -e "$GPULOOM_NOTICE_FILE" ] tells the same

report() {            # what `gpuloom ls` and `top` show; nothing outside gpuloom
    [ -n "${GPULOOM_PROGRESS_FILE:-}" ] || return 0
    printf '{"step": %d, "steps": %d, "saved_step": %d}\n' "$1" "$steps" "$1" > "$GPULOOM_PROGRESS_FILE.new"
    mv "$GPULOOM_PROGRESS_FILE.new" "$GPULOOM_PROGRESS_FILE"
}

step=0
[ ! -s "$state" ] || step=$(cat "$state")
while [ "$step" -lt "$steps" ] && [ "$stop" = 0 ]; do
    # One step of work. The signal reaches it too: a step that it cuts short is done again later.
    if sleep "$pace"; then
        step=$((step + 1))
        echo "$step" > "$state.new"
        mv "$state.new" "$state"    # a checkpoint is the old one or the whole new one
        report "$step"
    elif [ "$stop" = 0 ]; then
        exit 1
    fi
done
[ "$step" -ge "$steps" ] || exit 85    # preempted, and saved
echo "counted to $step"
