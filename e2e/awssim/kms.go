package awssim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/node-termination-handler/node-termination-handler/internal/iampolicy"
)

var kmsOperations = map[string]operation{
	"DescribeKey":  describeKey,
	"GetKeyPolicy": getKeyPolicy,
	"Decrypt":      decrypt,
}

// Who manages a key, as KMS says it.
const (
	ManagerAWS      = "AWS"
	ManagerCustomer = "CUSTOMER"
)

// Key is a key of KMS that queues can be encrypted with. The simulator encrypts nothing.
type Key struct {
	ID string `json:"id"`
	// Alias is another name, such as alias/queues.
	Alias string `json:"alias,omitempty"`
	// Manager is CUSTOMER (the default) or AWS.
	Manager string `json:"manager,omitempty"`
	// State is Enabled (the default), Disabled, PendingDeletion, …
	State  string `json:"state,omitempty"`
	Policy string `json:"policy,omitempty"`
}

// PutKey adds a key, or replaces the one of its id.
func (s *Server) PutKey(key Key) error {
	if key.ID == "" {
		return errors.New("put key: no id")
	}
	setDefault(&key.Manager, ManagerCustomer)
	setDefault(&key.State, "Enabled")
	s.mu.Lock()
	defer s.mu.Unlock()
	s.keys[key.ID] = key
	return nil
}

// SetKeyPolicy replaces the policy of a key.
func (s *Server) SetKeyPolicy(id, document string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, ok := s.keys[id]
	if !ok {
		return fmt.Errorf("set the policy of key %s: there is none", id)
	}
	if _, err := iampolicy.Parse(document); err != nil {
		return fmt.Errorf("set the policy of key %s: %w", id, err)
	}
	key.Policy = document
	s.keys[id] = key
	return nil
}

// Keys returns the keys, ordered by id.
func (s *Server) Keys() []Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := []Key{}
	for _, id := range slices.Sorted(maps.Keys(s.keys)) {
		keys = append(keys, s.keys[id])
	}
	return keys
}

func (s *Server) keyARN(key Key) string { return s.arn("kms", "key/"+key.ID) }

// key finds a key by its id, its alias, or the ARN of either. Every account has
// the one that AWS manages for SQS.
func (s *Server) key(id string) (Key, bool) {
	if at := strings.LastIndex(id, ":"); at >= 0 {
		id = id[at+1:]
	}
	id = strings.TrimPrefix(id, "key/")
	for _, key := range s.keys {
		if key.ID == id || key.Alias != "" && key.Alias == id {
			return key, true
		}
	}
	if id == "alias/aws/sqs" {
		return Key{ID: "aws-sqs", Alias: id, Manager: ManagerAWS, State: "Enabled"}, true
	}
	return Key{}, false
}

// onKey runs f with the key that a call names.
func (s *Server) onKey(req *request, f func(Key)) *apiError {
	var input struct {
		KeyID string `json:"KeyId"`
	}
	if problem := req.decode(&input); problem != nil {
		return problem
	}
	req.show("key", input.KeyID)
	s.mu.Lock()
	defer s.mu.Unlock()
	key, ok := s.key(input.KeyID)
	if !ok {
		return badRequest("NotFoundException", "Key '%s' does not exist", input.KeyID)
	}
	f(key)
	return nil
}

type keyMetadata struct {
	KeyID      string `json:"KeyId"`
	ARN        string `json:"Arn"`
	KeyManager string
	KeyState   string
	Enabled    bool
}

func describeKey(_ context.Context, s *Server, req *request) (any, *apiError) {
	var output keyMetadata
	problem := s.onKey(req, func(key Key) {
		output = keyMetadata{
			KeyID: key.ID, ARN: s.keyARN(key), KeyManager: key.Manager, KeyState: key.State,
			Enabled: key.State == "Enabled",
		}
	})
	return map[string]any{"KeyMetadata": output}, problem
}

func getKeyPolicy(_ context.Context, s *Server, req *request) (any, *apiError) {
	text := ""
	problem := s.onKey(req, func(key Key) { text = key.Policy })
	return map[string]string{"Policy": text, "PolicyName": "default"}, problem
}

// decrypt answers a dry run, which ends with an error in any case. The simulator encrypts nothing,
// so it knows no other call. The role's own policies decide: authorize has read them.
// https://docs.aws.amazon.com/kms/latest/APIReference/API_Decrypt.html
func decrypt(_ context.Context, s *Server, req *request) (any, *apiError) {
	var input struct {
		DryRun          bool
		DryRunModifiers []string
	}
	if problem := req.decode(&input); problem != nil {
		return nil, problem
	}
	if !input.DryRun || !slices.Contains(input.DryRunModifiers, "IGNORE_CIPHERTEXT") {
		return nil, badRequest("InvalidCiphertextException", "the simulator has encrypted nothing")
	}
	answer := badRequest("DryRunOperationException", "The request would have succeeded, but the DryRun option is set.")
	if problem := s.onKey(req, func(key Key) {
		if key.State != "Enabled" {
			answer = badRequest("DisabledException", "%s is %s", s.keyARN(key), key.State)
		}
	}); problem != nil {
		return nil, problem
	}
	return nil, answer
}
