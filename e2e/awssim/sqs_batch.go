package awssim

import (
	"regexp"
	"time"
)

// batchFailure is an entry of a batch that failed while others may have succeeded.
type batchFailure struct {
	ID          string `json:"Id"`
	Code        string
	Message     string
	SenderFault bool
}

type batchResult[T any] struct {
	Successful []T            `json:",omitempty"`
	Failed     []batchFailure `json:",omitempty"`
}

// batchID is the form of a batch entry's id.
var batchID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,80}$`)

// runBatch checks the rules for all batches and then handles the entries one by one.
func runBatch[E, R any](
	req *request, action string, entries []E, id func(E) string, one func(E) (R, *apiError),
) (batchResult[R], *apiError) {
	var result batchResult[R]
	req.entries = len(entries)
	switch {
	case len(entries) == 0:
		return result, badRequest("EmptyBatchRequest", "There should be at least one %sRequestEntry in the request.", action)
	case len(entries) > maxBatch:
		return result, badRequest("TooManyEntriesInBatchRequest",
			"Maximum number of entries per request are %d. You have sent %d.", maxBatch, len(entries))
	}
	seen := map[string]bool{}
	for _, entry := range entries {
		switch id := id(entry); {
		case !batchID.MatchString(id):
			return result, badRequest("InvalidBatchEntryId",
				"A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most 80 letters "+
					"long.")
		case seen[id]:
			return result, badRequest("BatchEntryIdsNotDistinct", "Id %s repeated.", id)
		default:
			seen[id] = true
		}
	}
	for _, entry := range entries {
		done, problem := one(entry)
		if problem != nil {
			result.Failed = append(result.Failed, batchFailure{
				ID: id(entry), Code: sqsQueryCode(problem.code), Message: problem.message, SenderFault: problem.senderFault(),
			})
			continue
		}
		result.Successful = append(result.Successful, done)
	}
	return result, nil
}

type handleEntry struct {
	ID                string `json:"Id"`
	ReceiptHandle     string
	VisibilityTimeout *int
}

type handleResult struct {
	ID string `json:"Id"`
}

type handleInput struct {
	QueueURL string `json:"QueueUrl"`
	handleEntry
}

type handleBatchInput struct {
	QueueURL string `json:"QueueUrl"`
	Entries  []handleEntry
}

// onEntry does something with the message of a receipt handle.
type onEntry func(*request, *queue, handleEntry, time.Time) *apiError

// onHandle does something with the message of one receipt handle.
func (s *Server) onHandle(req *request, one onEntry) (any, *apiError) {
	var input handleInput
	if problem := req.decode(&input); problem != nil {
		return nil, problem
	}
	problem := s.onQueue(req, input.QueueURL, func(q *queue, now time.Time) *apiError {
		return one(req, q, input.handleEntry, now)
	})
	return struct{}{}, problem
}

// onHandles does the same with a batch of receipt handles.
func (s *Server) onHandles(req *request, one onEntry) (any, *apiError) {
	var input handleBatchInput
	if problem := req.decode(&input); problem != nil {
		return nil, problem
	}
	var output batchResult[handleResult]
	problem := s.onQueue(req, input.QueueURL, func(q *queue, now time.Time) (problem *apiError) {
		output, problem = runBatch(req, req.action, input.Entries, func(e handleEntry) string { return e.ID },
			func(e handleEntry) (handleResult, *apiError) {
				return handleResult{ID: e.ID}, one(req, q, e, now)
			})
		return problem
	})
	return output, problem
}
