#!/bin/sh
# Print mode, size, time and name of files without GNU tools. Each argument is "size time name" as sent, relative to
# the current folder. A folder is looked up both with its slash, which follows a link, and without it.
if stat -c %s . >/dev/null 2>&1; then look() { stat -c "%f %s %Y" "$1"; }; else look() { stat -f "%Xp %z %m" "$1"; }; fi
for record; do
  name=${record#* }
  name=./${name#* }
  for each in "$name" "${name%/}"; do
    if [ -e "$each" ] || [ -L "$each" ]; then printf '%s %s\0' "$(look "$each")" "$each"; fi
    case $name in */) ;; *) break ;; esac
  done
done
