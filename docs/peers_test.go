package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// otherDrainers says for each row of "What other drainers do" in policy.md, by its beginning, which test plays it.
var otherDrainers = map[string]string{
	"Karpenter leaves pods alone":                  "internal/drain/newcomers_test.go TestPodsOfTheFirstListHaveToLeaveAlsoWhereTheyTolerateTheCordon",
	"Karpenter evicts pods of DaemonSets":          "internal/drain/turn_test.go TestPodsLeaveInTheOrderOfTheirTurns",
	"Karpenter does not wait":                      "internal/drain/unconfirmed_test.go TestAPodIsNotWaitedForWhoseEndNobodyConfirms",
	"Cluster API skips":                            "internal/drain/turn_test.go TestAPodThatNeverLeavesIsNeitherAskedNorWaitedFor",
	"kubectl and AWS Node Termination Handler":     "internal/drain/kubectl_test.go TestThePodOfADaemonSetThatIsGoneStays",
	"kubectl, NTH and Karpenter can set the grace": "internal/drain/turn_test.go TestTheMostGraceOfTheTermsOnlyCutsALongerOne",
}

func TestEachRowAboutOtherDrainersIsPlayed(t *testing.T) {
	rows := rowsBelow(t, "policy.md", "### What other drainers do")
	if len(rows) != len(otherDrainers) {
		t.Errorf("%d rows, %d with a test", len(rows), len(otherDrainers))
	}
	for begins, test := range otherDrainers {
		isTest(t, test)
		if !strings.Contains("\n"+strings.Join(rows, "\n"), "\n"+begins) {
			t.Errorf("no row begins with %q", begins)
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

// rowsBelow are the first cells of the table below a heading.
func rowsBelow(t *testing.T, file, heading string) (rows []string) {
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
			rows = append(rows, strings.TrimSpace(cells[1]))
		}
	}
	return rows
}
