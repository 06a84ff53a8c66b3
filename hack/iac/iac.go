// Package iac reads the templates of deploy/ as their services would, so that
// tests can ask what they make. It is a module of its own: nothing of what it
// needs is part of the product.
package iac

import "strings"

// Resource is what a template makes: a type, as the template's language names
// it, and properties in the terms of JSON.
type Resource struct {
	Type       string         `json:"Type"`
	Properties map[string]any `json:"Properties"`
}

// Account is where a template is applied.
type Account struct{ ID, Partition, Region string }

// ARN is what the tests take for the ARN of a resource, given the type and
// logical name of it in CloudFormation.
func (a Account) ARN(kind, name string) string {
	service := strings.ToLower(strings.Split(kind, "::")[1])
	region := a.Region
	switch kind {
	case "AWS::IAM::Role":
		region, name = "", "role/"+name
	case "AWS::Events::Rule":
		name = "rule/" + name
	}
	return strings.Join([]string{"arn", a.Partition, service, region, a.ID, name}, ":")
}
