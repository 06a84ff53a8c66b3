package docs

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// otherDrainers says for each row of "What other drainers do" in policy.md, by its beginning, what its second cell says
// among other things, and which tests play it.
var otherDrainers = map[string]struct{ here, tests []string }{
	"Karpenter leaves pods alone": {
		[]string{"that was there when the drain began", "One that comes later stays"},
		[]string{
			"internal/drain/newcomers_test.go TestPodsOfTheFirstListHaveToLeaveAlsoWhereTheyTolerateTheCordon",
			"internal/drain/newcomers_test.go TestAPodThatToleratesTheCordonAndComesDuringTheDrainStays",
		},
	},
	"Karpenter evicts pods of DaemonSets": {
		[]string{"They stay", "`daemonsets: true`", "the annotation `end`"},
		[]string{"internal/drain/turn_test.go TestPodsLeaveInTheOrderOfTheirTurns"},
	},
	"Karpenter does not wait": {
		[]string{"Two minutes", "volumes, on a node that is ready"},
		[]string{
			"internal/drain/unconfirmed_test.go TestAPodIsNotWaitedForWhoseEndNobodyConfirms",
			"internal/drain/volumewait_test.go TestTheVolumeOfAPodOfAReadyNodeIsWaitedForThoughNobodyConfirmsItsEnd",
		},
	},
	"Cluster API skips": {
		[]string{"Its label counts"},
		[]string{"internal/drain/turn_test.go TestAPodThatNeverLeavesIsNeitherAskedNorWaitedFor"},
	},
	"kubectl and AWS Node Termination Handler": {
		[]string{"It stays until"},
		[]string{"internal/drain/kubectl_test.go TestThePodOfADaemonSetThatIsGoneStays"},
	},
	"kubectl, NTH and Karpenter can set the grace": {
		[]string{"`grace` sets it", "`grace-at-most` only cuts"},
		[]string{"internal/drain/turn_test.go TestTheMostGraceOfTheTermsOnlyCutsALongerOne"},
	},
}

func TestEachRowAboutOtherDrainersIsPlayed(t *testing.T) {
	rows := rowsBelow(t, "policy.md", "### What other drainers do")
	if len(rows) != len(otherDrainers) {
		t.Errorf("%d rows, %d with a test", len(rows), len(otherDrainers))
	}
	for begins, row := range otherDrainers {
		for _, test := range row.tests {
			isTest(t, test)
		}
		at := slices.IndexFunc(rows, func(cells [2]string) bool { return strings.HasPrefix(cells[0], begins) })
		if at < 0 {
			t.Errorf("no row begins with %q", begins)
			continue
		}
		for _, words := range row.here {
			if !strings.Contains(rows[at][1], words) {
				t.Errorf("%s: the row does not say %q", begins, words)
			}
		}
	}
}

const dryRunRow = "page: `would have been cordoned and drained` of a dry run"

// nthScripts are those of test/e2e of AWS Node Termination Handler 1.25: for each the tests that play it, and, where something is
// different, "page: " and words of migrate-from-nth.md.
var nthScripts = map[string][]string{
	"asg-launch-lifecycle-sqs":                    {"e2e/hooks_test.go TestALaunchHookIsCompletedWhenItsNodeIsReadyAndNotBefore"},
	"asg-lifecycle-imds":                          {"internal/app/onnode_test.go TestATerminationByAutoScalingForcesNothing"},
	"asg-lifecycle-sqs-heartbeat":                 {"internal/controller/story_test.go TestTheCompletionDelayOutlastsTheHeartbeats", "page: `Sending lifecycle heartbeat`"},
	"asg-lifecycle-sqs":                           {"e2e/kinds_test.go TestATerminationHookIsCompletedWhenThePodsAreGoneAndBeforeItsMessageIsDeleted", "e2e/modes_test.go TestANodeGetsTheTaintOfEachKindOfNotice"},
	"cordon-only":                                 {"internal/app/onnode_test.go TestWithCordonOnlyTheNodeIsCordonedAndItsPodStays"},
	"ec2-state-change-sqs":                        {"e2e/kinds_test.go TestEachKindOfNoticeDrainsExactlyItsNodes", "e2e/modes_test.go TestANodeGetsTheTaintOfEachKindOfNotice"},
	"emit-events":                                 {"e2e/observe_test.go TestASpotDrainIsToldInEventsOfItsNodeAndItsPods", "page: log and text of the Event `Node successfully cordoned and drained`"},
	"imds-v2":                                     {"e2e/imds_test.go TestOnTheNodeASpotActionDrainsIt"},
	"maintenance-event-cancellation":              {"internal/app/onnode_mock_test.go TestAChangeThatIsOverIsUndoneThoughItIsListedAsScheduled"},
	"maintenance-event-dry-run":                   {"internal/app/onnode_test.go TestADryRunOnTheNodeChangesNothing", dryRunRow},
	"maintenance-event-reboot":                    {"internal/app/onnode_test.go TestANodeThatWasRebootedForAChangeIsUncordoned", "page: the pod waits at its start"},
	"maintenance-event":                           {"internal/app/onnode_test.go TestTheEndOfAScheduledChangeUncordonsTheNode"},
	"prometheus-metrics-sqs":                      {"e2e/prometheus_test.go TestAMissedDeadlineFiresItsAlertAndEveryPanelOfTheDashboardHasData", "page: `post-drain` for completed hooks alone", "page: `nth_tagged_instances`"},
	"prometheus-metrics":                          {"e2e/prometheus_test.go TestAMissedDeadlineFiresItsAlertAndEveryPanelOfTheDashboardHasData", "page: `runtime_go_*`"},
	"rebalance-recommendation-drain":              {"internal/app/onnode_test.go TestARecommendationCordonsOrDrainsAsTheOptionsSay"},
	"rebalance-recommendation-dry-run":            {"internal/app/onnode_test.go TestADryRunOnTheNodeChangesNothing", dryRunRow},
	"rebalance-recommendation-sqs-node-not-found": {"e2e/ownership_test.go TestMessagesOfForeignInstancesAreDeletedWhereThatIsWanted", "page: For 15 minutes after its launch"},
	"rebalance-recommendation-sqs":                {"e2e/kinds_test.go TestEachKindOfNoticeDrainsExactlyItsNodes", "e2e/modes_test.go TestANodeGetsTheTaintOfEachKindOfNotice"},
	"rebalance-recommendation":                    {"e2e/imds_test.go TestOnTheNodeARecommendationCordonsAndAWarningDrains"},
	"scheduled-change-event-sqs":                  {"e2e/kinds_test.go TestEachKindOfNoticeDrainsExactlyItsNodes", "e2e/modes_test.go TestANodeGetsTheTaintOfEachKindOfNotice", "page: a notice of another account"},
	"spot-interruption-dry-run":                   {"internal/app/onnode_test.go TestADryRunOnTheNodeChangesNothing", dryRunRow},
	"spot-interruption-sqs":                       {"e2e/kinds_test.go TestEachKindOfNoticeDrainsExactlyItsNodes", "e2e/modes_test.go TestANodeGetsTheTaintOfEachKindOfNotice", "page: a notice of another account"},
	"spot-interruption":                           {"e2e/imds_test.go TestOnTheNodeASpotActionDrainsIt"},
	"spot-interruption-test-events-on":            {"e2e/imds_test.go TestOnTheNodeASpotActionDrainsIt", "page: Events `PreDrain`", "page: annotations of Events"},
	"spot-interruption-test-host-networking-off":  {"e2e/helm/found_test.go TestTheDaemonSetIsAsTheValuesSay"},
	"webhook-http-proxy":                          {"internal/webhook/delivery/delivery_test.go TestAMessageGoesThroughTheProxyThatFailedBefore", "page: `Webhook Success`"},
	"webhook-secret":                              {"e2e/helm/helm_test.go TestEachValuesFileRendersAsBefore"},
	"webhook":                                     {"e2e/observe_test.go TestTheWebhookIsCalledOnceWithWhatNTHSays", "page: `Webhook Success`"},
}

func TestEachScriptOfNTHHoldsOrHasItsRow(t *testing.T) {
	page, err := os.ReadFile("migrate-from-nth.md")
	if err != nil {
		t.Fatal(err)
	}
	for script, proofs := range nthScripts {
		for _, proof := range proofs {
			if words, is := strings.CutPrefix(proof, "page: "); !is {
				isTest(t, proof)
			} else if !strings.Contains(string(page), words) {
				t.Errorf("%s: the page does not say %q", script, words)
			}
		}
	}
	if len(nthScripts) != 28 {
		t.Errorf("%d scripts, want 28", len(nthScripts))
	}
}

// isTest checks that there is a test: its file and its name.
func isTest(t *testing.T, test string) {
	t.Helper()
	file, name, _ := strings.Cut(test, " ")
	text, err := os.ReadFile(filepath.Join("..", file))
	if err != nil || !strings.Contains(string(text), "\nfunc "+name+"(t *testing.T)") {
		t.Errorf("there is no %s: %v", test, err)
	}
}

// rowsBelow are the first two cells of each row of the table below a heading.
func rowsBelow(t *testing.T, file, heading string) (rows [][2]string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, below, _ := strings.Cut(string(text), heading+"\n")
	below, _, _ = strings.Cut(below, "\n#")
	_, table, _ := strings.Cut(below, "|---|")
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, "|"); len(cells) > 3 {
			rows = append(rows, [2]string{strings.TrimSpace(cells[1]), strings.TrimSpace(cells[2])})
		}
	}
	return rows
}
