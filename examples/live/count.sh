#!/bin/sh
# A job that is a shell script: it counts, and can be interrupted.  Usage: sh count.sh STATE-FILE [STEPS [SECONDS]]
told=0
trap 'told=$((told + 1))' TERM    # the notice; [ -e "$GPULOOM_NOTICE_FILE" ] tells the same
set -eu
state=$1 steps=${2:-100} pace=${3:-0.1}

put() {               # FILE TEXT: whoever reads it sees what was there or the whole new text
    echo "$2" > "$1.new" && mv "$1.new" "$1"
}

whole() {             # COMMAND…: the signal reaches every program of the job; what it cuts short is done again
    heard=$told
    until "$@"; do
        [ "$told" -gt "$heard" ] || exit 1
        heard=$told
    done
}

report() {            # what `gpuloom ls` and `top` show; nothing outside gpuloom
    [ -n "${GPULOOM_PROGRESS_FILE:-}" ] || return 0
    whole put "$GPULOOM_PROGRESS_FILE" "{\"step\": $1, \"steps\": $steps, \"saved_step\": $1}"
}

step=0
[ ! -s "$state" ] || read -r step < "$state"
while [ "$step" -lt "$steps" ] && [ "$told" = 0 ]; do
    # One step of work. One that the signal cuts short is done by the next attempt.
    if sleep "$pace"; then
        step=$((step + 1))
        whole put "$state" "$step"
        report "$step"
    elif [ "$told" = 0 ]; then
        exit 1
    fi
done
[ "$step" -ge "$steps" ] || exit 85    # preempted, and saved
echo "counted to $step"
