#!/bin/sh
# Print the SHA-256 and the name of files, which are relative to the current folder.
for name; do printf '%.64s %s\0' "$(sha256sum < "./$name")" "$name"; done 2>/dev/null
