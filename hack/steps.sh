# What .ci/run and hack/test-all share: steps, which are all played, and at their end a table of them with what has failed.
# To be sourced, with set -o pipefail.

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# step NAME COMMAND... runs the command, and says how it ended and how long it took.
step() {
	local name=$1 start=$SECONDS rc=0 log fate=ok
	log=$(mktemp "$work/log-XXXXXX")
	shift
	printf '\n=== %s\n' "$name"
	"$@" 2>&1 | tee "$log" || rc=$? # with pipefail
	if ((rc != 0)); then
		fate=FAILED
		touch "$work/failed"
	fi
	{
		printf '%-28s %-6s %5d s\n' "$name" "$fate" $((SECONDS - start))
		awk '/^ *--- FAIL|^FAIL|^panic:|DATA RACE|^FLAKY/ && !seen[$0]++ {print "    " $0}' "$log"
	} >>"$work/table"
	printf '=== %s: %s, %d s\n' "$name" "$fate" $((SECONDS - start))
}

# summary prints the table, and fails if a step has.
summary() {
	printf '\n'
	cat "$work/table"
	printf '%d s in all\n' "$SECONDS"
	[[ ! -e $work/failed ]]
}
