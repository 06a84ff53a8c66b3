package awssim

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/node-termination-handler/node-termination-handler/internal/iampolicy"
)

// Role is an identity whose policy decides what may be called with its keys, as in
// AWS. Whoever calls with other keys may call everything.
type Role struct {
	Name string `json:"name"`
	// AccessKeyID is that of the sessions of the role.
	AccessKeyID string `json:"accessKeyId"`
	Policy      string `json:"policy"`
}

// PutRole adds a role, or replaces the one of its name.
func (s *Server) PutRole(role Role) error {
	if role.Name == "" {
		return errors.New("put role: no name")
	}
	if _, err := iampolicy.Parse(role.Policy); err != nil {
		return fmt.Errorf("put role %s: %w", role.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.roles[role.Name] = role
	return nil
}

// RoleARN returns the ARN that a role of this name has, or would have.
func (s *Server) RoleARN(name string) string {
	return "arn:aws:iam::" + s.opts.Account + ":role/" + name
}

// roleOf finds the role that a key is of.
func (s *Server) roleOf(accessKeyID string) (Role, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, role := range s.roles {
		if role.AccessKeyID != "" && role.AccessKeyID == accessKeyID {
			return role, true
		}
	}
	return Role{}, false
}

func (s *Server) callerARN(accessKeyID string) string {
	if role, ok := s.roleOf(accessKeyID); ok {
		return "arn:aws:sts::" + s.opts.Account + ":assumed-role/" + role.Name + "/session"
	}
	return "arn:aws:iam::" + s.opts.Account + ":user/" + accessKeyID
}

// authorize refuses what the caller's role has no permission for. It comes before what
// is asked is looked at, as in AWS. Who one is may be asked by everybody.
func (s *Server) authorize(req *request) *apiError {
	role, ok := s.roleOf(req.accessKeyID)
	action := req.service + ":" + req.action
	if req.service == "sqs" { // a batch takes the permission for one
		action = strings.TrimSuffix(action, "Batch")
	}
	if !ok || action == "sts:GetCallerIdentity" {
		return nil
	}
	about := map[string]string{"aws:requestedregion": s.opts.Region, "aws:securetransport": "true"}
	if req.service == "autoscaling" && actionsOnGroups[req.action] {
		s.mu.Lock()
		if g := s.groups[req.form.Get("AutoScalingGroupName")]; g != nil {
			for key, value := range g.Tags {
				about["aws:resourcetag/"+strings.ToLower(key)] = value
			}
		}
		s.mu.Unlock()
	}
	if allows(role.Policy, iampolicy.Request{Action: action, Resource: s.resourceOf(req), Context: about}) {
		return nil
	}
	problem := &apiError{status: http.StatusForbidden, code: "AccessDenied"}
	problem.message = fmt.Sprintf("User: %s is not authorized to perform: %s because no identity-based policy allows the "+
		"%[2]s action", s.callerARN(req.accessKeyID), action)
	switch req.service {
	case "ec2":
		problem.code = "UnauthorizedOperation"
	case "events", "kms":
		problem.code = "AccessDeniedException"
	}
	return problem
}

// actionsOnGroups are those of Auto Scaling that a policy can limit to a group.
// https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2autoscaling.html
var actionsOnGroups = map[string]bool{
	"CompleteLifecycleAction": true, "RecordLifecycleActionHeartbeat": true, "PutLifecycleHook": true,
	"TerminateInstanceInAutoScalingGroup": true,
}

// resourceOf is what a call is about, as policies name it.
func (s *Server) resourceOf(req *request) string {
	var input struct {
		QueueURL string `json:"QueueUrl"`
		Name     string // of a rule
		Rule     string
		KeyID    string `json:"KeyId"`
	}
	_ = json.Unmarshal(req.json, &input) // what is no JSON is about nothing
	group := req.form.Get("AutoScalingGroupName")
	switch {
	case req.service == "sns":
		return req.form.Get("TopicArn") + req.form.Get("SubscriptionArn")
	case req.service == "sqs" && input.QueueURL != "":
		return s.QueueARN(input.QueueURL[strings.LastIndexByte(input.QueueURL, '/')+1:])
	case req.service == "events" && input.Name+input.Rule != "":
		return s.RuleARN(input.Name + input.Rule)
	case req.service == "kms":
		s.mu.Lock()
		defer s.mu.Unlock()
		if key, ok := s.key(input.KeyID); ok {
			return s.keyARN(key)
		}
	case req.service == "autoscaling" && actionsOnGroups[req.action]:
		return s.arn("autoscaling", "autoScalingGroup:00000000-0000-0000-0000-000000000000:autoScalingGroupName/"+group)
	}
	return "*"
}
