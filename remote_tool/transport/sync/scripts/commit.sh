#!/bin/sh
# Remove stale files, record the sent files, and mark the copy as complete, once the local rsync has succeeded.
# Then print the ids of running jobs, see running_jobs.sh.
#
# Runs after receive.sh, which has read the line of this request, or in a session of its own where that could not read
# its stdin after rsync; see there.
# shellcheck disable=SC2153 # a variable in capitals is no misspelling of the one in small letters

until [ "$word $mark" = "commit $MARK" ]; do
  read -r word mark sent_size stale_size all_sent || exit 1
done
umask 077
cd "$HOME/$SCRIPTS" || exit 1
all=$PWD/.sent.$$
trap '[ ! -e "$all" ] || rm -f "$all" "$all.new" "$all.stale"' EXIT
trap 'exit 1' HUP PIPE TERM
cat > "$all" || exit 1
now=
{ IFS= read -r now < "$HOME/$STATE"; } 2>/dev/null
if [ "$now" != "incomplete $SNAPSHOT $MARK" ]; then
  who=somebody
  { read -r _ who < "$HOME/$OWNER_FILE"; } 2>/dev/null
  echo "$who has started another sync here" >&2
  exit 1
fi
# A lost connection may end stdin early: the size shows it.
[ "$(wc -c < "$all")" -eq $((sent_size + stale_size)) ] || { echo "the transfer was cut off" >&2; exit 1; }
if [ "$stale_size" -gt 0 ]; then
  head -c "$sent_size" "$all" > "$all.new" && tail -c "+$((sent_size + 1))" "$all" > "$all.stale" || exit 1
  # What stays because it was changed here was never the client's: its record tells a later sync.
  (cd "$HOME/$PROJECT" && xargs -0 -n 500 sh -c "$REMOVE_EACH" sh < "$all.stale") 3>> "$all.new"
  rm -f "$all.stale"
  mv -f "$all.new" "$all" || exit 1
fi
mv -f "$all" "$HOME/$SENT" || exit 1
# Parts from an earlier sync may remain where this sync did not send the file.
case ${state:-} in
  complete*) ;;
  *) find "$HOME/$PROJECT" -type d -name "$PARTIAL_FOLDER" -prune -exec rm -rf {} + 2>/dev/null ;;
esac
[ ! -e partial ] || rm -rf partial
[ -z "$all_sent" ] || echo "complete $SNAPSHOT" > "$HOME/$STATE"
# Without GNU stat, free space is not reported.
room=$(stat -f -c '%a %b %S' . 2>/dev/null) && printf '//%s\0' "$room"
