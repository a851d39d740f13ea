#!/bin/sh
# The server's side of a sync: report the project's files, answer questions about them, and run rsync.
# commit.sh follows, unless it is a dry run.
#
# server_script.py sets the variables in capitals; paths are relative to $HOME. The arguments describe the states in
# which the copy may be, three words each: snapshot, size of the list of sent files, and digest of these files. If
# SNAPSHOT is empty, the client is still listing its project, and sends these words for it afterwards.
# shellcheck disable=SC2153 # a variable in capitals is no misspelling of the one in small letters

cd "$HOME" || exit "$CANNOT_USE"
project=$HOME/$PROJECT scripts=$HOME/$SCRIPTS
arriving=$scripts/arriving partial=$scripts/partial

# A session without a terminal may have a short PATH.
rsync=
if command -v rsync >/dev/null; then rsync=rsync; fi
for place in $PLACES "$HOME/$ENVIRONMENT/bin"; do
  [ -n "$rsync" ] || { [ -x "$place/rsync" ] && rsync=$place/rsync; }
done
[ -n "$rsync" ] || exit "$NO_RSYNC"

# Read which workspaces have sent here, and set claimed if this one is among them. Before servers recorded it, only the
# user and the machine of the last sync are known.
see_workspaces() {
  workspaces='' claimed=
  [ -n "$WORKSPACE" ] || { claimed=1; return; }
  if [ -e "$HOME/$WORKSPACES" ]; then
    while IFS= read -r each; do
      [ "$each" != "$WORKSPACE" ] || claimed=1
      workspaces="$workspaces$each
"
    done < "$HOME/$WORKSPACES"
  elif [ -e "$HOME/$STATE" ]; then
    who=
    { read -r _ who < "$HOME/$OWNER_FILE"; } 2>/dev/null
    workspaces="unknown $who
"
    [ -n "$DRY_RUN" ] || record_workspaces ''
  else
    find_elsewhere
  fi
}

# Name the folders that this workspace has sent under other names of the project.
find_elsewhere() {
  for each in "$HOME"/*/"$SCRIPTS_NAME"/workspaces "$HOME"/*/*/"$SCRIPTS_NAME"/workspaces; do
    [ -f "$each" ] || continue
    while read -r id _; do
      [ "$id" = "${WORKSPACE%% *}" ] || continue
      each=${each#"$HOME"/}
      echo "elsewhere: ${each%/*/*}" >&2
      break
    done < "$each"
  done
}

record_workspaces() {
  printf '%s%s' "$workspaces" "$1" > "$HOME/$WORKSPACES.$$" && mv -f "$HOME/$WORKSPACES.$$" "$HOME/$WORKSPACES" ||
    exit "$CANNOT_WRITE"
}

# Lock the copy, or name the sync to wait for. rsync inherits the lock, and keeps it if it outlives its client.
lock() {
  { (umask 077; : >> "$HOME/$LOCK") && exec 9>>"$HOME/$LOCK"; } || exit "$CANNOT_WRITE"
  began=$(date +%s)
  if command -v flock >/dev/null && ! flock -n 9; then
    since=$began who=somebody
    { read -r since who < "$HOME/$OWNER_FILE"; } 2>/dev/null
    echo "waiting: $who has been syncing here for $((began - since)) s" >&2
    until flock -n 9; do
      [ $(($(date +%s) - began)) -lt "$PATIENCE" ] || exit "$LOCKED"
      sleep 0.2
    done
    began=$(date +%s)
  fi
  see_workspaces
  echo "$began $OWNER" > "$HOME/$OWNER_FILE"
}

# Move files that a first sync received into the project; the status says whether all could be moved.
promote() {
  left=0
  set --
  for each in "$arriving"/* "$arriving"/.[!.]* "$arriving"/..?*; do
    [ -e "$each" ] || [ -L "$each" ] || continue
    # Files that appeared in the meantime belong to somebody else: mv would move into such a folder.
    if [ -e "$project/${each##*/}" ]; then left=1; else set -- "$@" "$each"; fi
    # Many at once, because starting mv takes longer than all of its renames.
    [ $# -lt 200 ] || { mv -- "$@" "$project/" || left=1; set --; }
  done
  [ $# -eq 0 ] || mv -- "$@" "$project/" || left=1
  mode=$(stat -c %a "$arriving" 2>/dev/null || stat -f %Lp "$arriving") && chmod "$mode" "$project"
  rm -rf "$arriving"
  return "$left"
}

# Set bare if the project folder holds only files of remote-tool.
see_whether_bare() {
  bare=1
  for each in "$project"/* "$project"/.[!.]* "$project"/..?*; do
    case ${each##*/} in "$SCRIPTS_NAME" | "$JOBS_NAME") continue ;; esac
    if [ -e "$each" ] || [ -L "$each" ]; then bare=; return; fi
  done
}

# Print the digest of the attributes that rsync compares, of the files in the first bytes of the list of sent files:
# kind, permissions, size, time and name; folders without size and time, which vary.
digest_of_copy() {
  head -c "$1" "$HOME/$SENT" | LC_ALL=C sed -z 's:^[^ ]* [^ ]* :./:' |
    (cd "$project" && LC_ALL=C QUOTING_STYLE=literal xargs -0 stat --printf '%f %s %Y %N\0' --) |
    LC_ALL=C sed -z 's/^\(4[0-9a-f]*\) [0-9]* -*[0-9]* /\1 /' | sha256sum
}

# Set state, and same if the copy matches one of the described states, unless this state was compared before.
same=0 size=0 compared=
compare() {
  state='' digest=
  { IFS= read -r state < "$HOME/$STATE"; } 2>/dev/null
  [ -z "$compared" ] || [ "$state" != "$compared" ] || return 0
  same=0 compared=
  while [ $# -gt 0 ]; do
    [ "$state" != "complete $1" ] || { size=$2 digest=$3 compared=$state; }
    shift 3
  done
  [ -z "$digest" ] || [ "$(digest_of_copy "$size" 2>/dev/null)" != "$digest  -" ] || same=1
}

end_answer() { printf '\000\000%s \n' "$MARK"; }

mark_incomplete() {
  [ -n "$DRY_RUN$claimed" ] || record_workspaces "$WORKSPACE
"
  claimed=1
  [ -n "$DRY_RUN" ] || echo "incomplete $SNAPSHOT $MARK" > "$HOME/$STATE" || exit "$CANNOT_WRITE"
}

# Print the records of a question, which are on stdin, and those of the list of sent files if it asks for them.
records() {
  asked=${words#* }
  [ "${asked#* }" != all ] || cat "$HOME/$SENT" 2>/dev/null
  head -c "${asked%% *}"
}

# An interrupted sync leaves the part of a read-only file read-only, so that rsync cannot complete it.
make_parts_writable() {
  case $DRY_RUN$state in
    incomplete*) find "$1/" -path "*/$PARTIAL_FOLDER/*" -type f ! -perm -200 -exec chmod u+w {} + 2>/dev/null ;;
  esac
}

# Run rsync with a temporary folder outside the project, so that a killed rsync leaves nothing in the project. Such a
# folder costs a rename between folders for each file, which takes as long as everything else. If the project is
# empty, all files are received there and moved at once.
receive() {
  there=$project${into:+/$into} beside=
  if [ -z "$DRY_RUN" ]; then
    if [ -n "$into" ]; then bare=; else see_whether_bare; fi
    if [ -n "$bare" ]; then
      there=$arriving
      (umask 077; mkdir -- "$arriving") || exit "$CANNOT_WRITE"
    else
      # openrsync, which macOS and the BSDs may have, does not support a temporary folder.
      if [ -e "$STREAMS" ]; then version=; else version=$("$rsync" --version 2>/dev/null); fi
      case $version in
        *openrsync*) ;;
        *) (umask 077; mkdir -p "$partial") && beside=--temp-dir=$partial ;;
      esac
    fi
  fi
  eval "set -- $words"
  # The first argument is --server.
  first=$1
  shift
  set -- "$first" ${beside:+"$beside"} "$@" "$there"/
  if [ -n "$stdin_shared" ]; then "$rsync" "$@" < "$STREAMS/0" > "$STREAMS/1"; else "$rsync" "$@"; fi
  status=$?
  if [ "$there" = "$arriving" ] && { [ "$status" -eq 0 ] || [ "$status" -eq 24 ]; } && ! promote; then
    echo "other files appeared in the project during the sync" >&2
    status=$CANNOT_WRITE
  fi
  [ -z "$beside" ] || rmdir "$partial" 2>/dev/null
}

# Run rsync if words has its arguments, report its end, and set word to what the client wants then: again or commit.
receive_once() {
  mark_incomplete
  # rsync makes its streams nonblocking, which a shell cannot read: it gets open files of its own.
  if (: < "$STREAMS/0" && : > "$STREAMS/1") 2>/dev/null; then stdin_shared=1; else stdin_shared=; fi
  status=0
  [ -z "$words" ] || receive
  printf '\000\000%s %s %s\n' "$MARK" "$status" "$stdin_shared"
  [ -n "$stdin_shared" ] || exit "$status"
  # 23: some files were not sent, and the client may know another way; 24: some vanished before they were sent.
  case $status in 0 | 23 | 24) ;; *) exit "$status" ;; esac
  word=
  until [ "$word $mark" = "again $MARK" ] || [ "$word $mark" = "commit $MARK" ]; do
    # shellcheck disable=SC2034 # the sizes are for commit.sh
    read -r word mark sent_size stale_size all_sent && continue
    [ -n "$DRY_RUN" ] || [ "$status" -ne 0 ] || status=1
    exit "$status"
  done
}

# While the client lists its project, nothing is locked: its list may take minutes, or never come.
sent_size='' sent_digest=
if [ -z "$SNAPSHOT" ]; then
  compare "$@"
  read -r again SNAPSHOT sent_size sent_digest || exit 1
  [ "$again" = 0 ] || compared=
fi

if [ -n "$DRY_RUN" ]; then
  see_workspaces
else
  # Each program that is not started saves a millisecond on the server.
  [ -d "$scripts" ] || { mkdir -p -- "$project" && (umask 077; mkdir -p -- "$scripts"); } || exit "$CANNOT_USE"
  lock
  # Left by an interrupted first sync; a file that only looks like rsync's partial files is sent again.
  if [ -e "$arriving" ]; then
    find "$arriving" -type f -name '.*.??????' -exec rm -f {} +
    promote
  fi
fi

# Report the state, whether the copy matches it, and the part of the list of sent files that is not known already.
compare ${sent_digest:+"$SNAPSHOT" "$sent_size" "$sent_digest"} "$@"
make_parts_writable "$project"
see_whether_bare
[ -z "$bare" ] || same=-
printf '%s\n%s\n%s\n' "$state" "$same" "$workspaces"
if [ "$same" = 1 ]; then tail -c "+$((size + 1))" "$HOME/$SENT"; else cat "$HOME/$SENT"; fi 2>/dev/null
end_answer
[ "$same $state $claimed" != "1 complete $SNAPSHOT 1" ] || exit 0

# Answer requests; a line that is none has the arguments of rsync, or is empty, and ends them unless the client asks
# again.
into=
while IFS= read -r words || exit 1; do
  case $words in
    # A folder is looked up both with its slash, which follows a link, and without it.
    'look '*) records | (cd "$project" &&
      LC_ALL=C sed -z -e 's:^[^ ]* [^ ]* :./:' -e '/\/$/{p;s:/$::' -e '}' |
      LC_ALL=C xargs -0 stat --printf '%f %s %Y %n\0' -- 2>/dev/null) ;;
    'look-slowly '*) records | (cd "$project" && xargs -0 -n 500 sh -c "$LIST_EACH" sh) ;;
    'hash '*) records | (cd "$project" && xargs -0 -n 500 sh -c "$HASH_EACH" sh) ;;
    'append '*)
      name=${words#* * } size=${words#* }
      size=${size%% *} file=/dev/null
      if [ -f "$project/$name" ] && [ -w "$project/$name" ]; then file=$project/$name; fi
      # All of the data is read, or the script ends, because it would take the rest for its next request.
      head -c "$size" >> "$file" || exit "$CANNOT_WRITE" ;;
    relay)
      mark_incomplete
      IFS= read -r program || exit 1
      # If another folder is used as the home folder, this variable has the real one.
      home=${remote_tool_home:-$HOME}
      if [ -x "$home/$PROGRAMS/python" ] && [ -d "$home/$PROGRAMS/$program" ]; then
        (cd "$home/$PROGRAMS" &&
          HOME=$home REMOTE_TOOL_SUPERVISOR=1 exec ./python -I -S "$program"/run_control.py)
      else
        IFS= read -r _ || exit 1
      fi ;;
    # A folder that is a link here: rsync gets it as its destination, and so follows it.
    'into '*)
      # head of some systems would read the next line too.
      into=$(dd bs=1 count="${words#* * }" 2>/dev/null && printf .)
      into=${into%.} mode=${words#* }
      mode=${mode%% *}
      if [ -z "$DRY_RUN" ] && [ "$mode" != - ]; then chmod "$mode" "$project/$into" 2>/dev/null; fi
      make_parts_writable "$project/$into"
      continue ;;
    *)
      receive_once
      [ "$word" = again ] || break
      into=
      continue ;;
  esac
  end_answer
done
