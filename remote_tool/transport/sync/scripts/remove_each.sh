#!/bin/sh
# Remove files, and print their names. Each argument is "size time name" as sent, relative to the current folder.
# Files that have changed since, or are behind a link, stay. The arguments of those that have changed go to stream 3.
if stat -c %s . >/dev/null 2>&1; then look() { stat -c "%s %Y" "$1"; }; else look() { stat -f "%z %m" "$1"; }; fi
for record; do
  size=${record%% *} rest=${record#* }
  modified=${rest%% *} name=${rest#* }
  parent=$name linked=
  while case $parent in */?*) ;; *) false ;; esac; do
    parent=${parent%/*}
    [ ! -L "./$parent" ] || linked=1
  done
  [ -z "$linked" ] || continue
  case $name in */) rmdir "./${name%/}" 2>/dev/null; continue ;; esac
  [ -f "./$name" ] || [ -L "./$name" ] || continue
  [ "$(look "./$name" 2>/dev/null)" = "$size $modified" ] || { printf '%s\0' "$record" >&3; continue; }
  rm -f "./$name" && printf '%s\0' "$name"
done
exit 0
