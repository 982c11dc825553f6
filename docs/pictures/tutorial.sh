#!/bin/bash
# Makes the pictures of docs/guide/tutorial.md from its own study: bash docs/pictures/tutorial.sh
# Needs vrm with matplotlib on PATH, tmux and chromium. Prints what `vrm top` shows.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
# The files of the tutorial: its blocks up to the first run; the cases take ten times as long.
awk '/^```sh$/ {on = 1; next} /^```$/ {on = 0} /^vrm (init|check)$/ {next} /^vrm run/ {exit} on' \
    "$here/../guide/tutorial.md" | grep -v '^\(git clone\|python3 -m venv\|export PATH\|.*pip install\)' > setup.sh
bash setup.sh
cd study
sed -i 's/sleep(size)/sleep(10 * size)/' bin/solve

vrm run > run.log &
manager=$!
until [ "$(grep -c completed run.log)" -gt 30 ] && [ -e logs/forecast.json ]; do sleep 1; done
tmux -L vrm-tutorial -f /dev/null new-session -d -x 90 -y 26 "vrm top"
until tmux -L vrm-tutorial capture-pane -p | grep -q Running; do sleep 0.2; done
tmux -L vrm-tutorial capture-pane -p
tmux -L vrm-tutorial kill-server
vrm forecast --page forecast.html > /dev/null
chromium --headless --no-sandbox --hide-scrollbars --window-size=1000,620 \
    --screenshot="$here/tutorial-forecast.png" "file://$PWD/forecast.html" 2>/dev/null
vrm stop --now > /dev/null
wait $manager || true

sed -i 's/sleep(10 \* size)/sleep(size)/' bin/solve
awk '/^```sh$/ {block = ""; on = 1; next} /^```$/ {if (on && block ~ /forty.queue/) printf "%s", block; on = 0} on {block = block $0 "\n"}' \
    "$here/../guide/tutorial.md" > compare.sh
bash compare.sh > /dev/null
cp pages/timeline-strip.png "$here/tutorial-strip.png"
