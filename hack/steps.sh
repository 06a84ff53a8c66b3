# What .ci/run and hack/test-all share: steps, which are all played, and at their end a table of them with what has failed.
# To be sourced.

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rows=()
failed=0

# step NAME COMMAND... runs the command, and says how it ended and how long it took.
step() {
	local name=$1 start=$SECONDS rc=0 log fate=ok
	log=$work/log-${#rows[@]}
	shift
	printf '\n=== %s\n' "$name"
	"$@" > >(tee "$log") 2>&1 || rc=$?
	wait $! # for tee
	if ((rc != 0)); then
		fate=FAILED
		failed=1
	fi
	awk '/^ *--- FAIL|^FAIL|^panic:|DATA RACE|^FLAKY/ && !seen[$0]++ {print "    " $0}' "$log" >"$log-failed"
	rows+=("$(printf '%-28s %-6s %5d s' "$name" "$fate" $((SECONDS - start)))|$log-failed")
	printf '=== %s: %s, %d s\n' "$name" "$fate" $((SECONDS - start))
}

# summary prints the table, and fails if a step has.
summary() {
	local row
	printf '\n'
	for row in "${rows[@]}"; do
		echo "${row%%|*}"
		if [[ -s ${row#*|} ]]; then cat "${row#*|}"; fi
	done
	printf '%d steps in %d s\n' "${#rows[@]}" "$SECONDS"
	return "$failed"
}
