package iac

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"strings"

	"go.yaml.in/yaml/v3"
)

// CloudFormation returns the resources of a template by their logical names,
// with the functions that it uses evaluated for an account and parameters. The
// stack has the name that the docs give it: nth-CLUSTER, or nth-fan-out if it is of no cluster. It is an error if
// resources need each other in a circle.
func CloudFormation(template []byte, account Account, parameters map[string]any) (map[string]Resource, error) {
	var document yaml.Node
	if err := yaml.Unmarshal(template, &document); err != nil {
		return nil, err
	}
	root, err := plain(document.Content[0])
	if err != nil {
		return nil, err
	}
	sections := root.(map[string]any)
	s := stack{
		account: account, parameters: map[string]any{},
		kinds: map[string]string{}, queues: map[string]string{}, needs: map[string]map[string]bool{},
	}
	maps.Copy(s.parameters, parameters)
	if s.conditions, err = section(sections, "Conditions"); err != nil {
		return nil, err
	}
	declared, err := section(sections, "Parameters")
	if err != nil {
		return nil, err
	}
	if err := s.withDefaults(declared); err != nil {
		return nil, err
	}
	rules, _ := sections["Rules"].(map[string]any) // a template needs none
	if err := s.asserted(rules); err != nil {
		return nil, err
	}
	resources, err := section(sections, "Resources")
	if err != nil {
		return nil, err
	}
	if resources, err = s.unroll(resources); err != nil {
		return nil, err
	}
	if resources, err = s.wanted(resources); err != nil {
		return nil, err
	}
	made := map[string]Resource{}
	for name, resource := range resources {
		s.making = name
		properties, err := s.value(resource.(map[string]any)["Properties"])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if properties == nil { // all of them have defaults
			properties = map[string]any{}
		}
		made[name] = Resource{Type: s.kinds[name], Properties: properties.(map[string]any)}
	}
	s.making = ""
	for name := range made {
		if s.reaches(name, name, map[string]bool{}) {
			return nil, fmt.Errorf("circular dependency: %s needs itself", name)
		}
	}
	if err := s.outputs(sections["Outputs"].(map[string]any)); err != nil {
		return nil, fmt.Errorf("outputs: %w", err)
	}
	return made, nil
}

// outputs evaluates the outputs whose conditions hold.
func (s *stack) outputs(all map[string]any) error {
	for name, output := range all {
		fields := output.(map[string]any)
		if condition, ok := fields["Condition"].(string); ok {
			if holds, err := s.holds(condition); err != nil || !holds {
				if err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				continue
			}
		}
		if _, err := s.value(fields["Value"]); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// wanted are the resources whose conditions hold. It notes their types, and the names that queues have.
func (s *stack) wanted(resources map[string]any) (map[string]any, error) {
	wanted := map[string]any{}
	for name, resource := range resources {
		fields := resource.(map[string]any)
		if condition, ok := fields["Condition"].(string); ok {
			holds, err := s.holds(condition)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if !holds {
				continue
			}
		}
		wanted[name] = resource
		s.kinds[name], _ = fields["Type"].(string)
		if properties, ok := fields["Properties"].(map[string]any); ok && properties["QueueName"] != nil {
			given, err := s.value(properties["QueueName"])
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			s.queues[s.account.ARN(s.kinds[name], given.(string))] = s.account.ARN(s.kinds[name], name)
		}
	}
	return wanted, nil
}

// reaches reports whether a resource needs another one, if only by way of others.
func (s *stack) reaches(from, to string, seen map[string]bool) bool {
	for next := range s.needs[from] {
		if next == to {
			return true
		}
		if !seen[next] {
			seen[next] = true
			if s.reaches(next, to, seen) {
				return true
			}
		}
	}
	return false
}

// plain turns YAML into JSON's terms, and the short form of functions into the
// long one. CloudFormation does not know YAML's aliases.
func plain(n *yaml.Node) (any, error) {
	if n.Kind == yaml.AliasNode || n.Anchor != "" {
		return nil, fmt.Errorf("line %d: CloudFormation has no aliases", n.Line)
	}
	var value any
	switch n.Kind {
	case yaml.MappingNode:
		fields := map[string]any{}
		for i := 0; i < len(n.Content); i += 2 {
			name := n.Content[i].Value
			if _, ok := fields[name]; ok {
				return nil, fmt.Errorf("line %d: %s is there twice", n.Content[i].Line, name)
			}
			field, err := plain(n.Content[i+1])
			if err != nil {
				return nil, err
			}
			fields[name] = field
		}
		value = fields
	case yaml.SequenceNode:
		elements := []any{}
		for _, content := range n.Content {
			element, err := plain(content)
			if err != nil {
				return nil, err
			}
			elements = append(elements, element)
		}
		value = elements
	case yaml.ScalarNode, yaml.DocumentNode, yaml.AliasNode:
		if strings.HasPrefix(n.Tag, "!!") {
			if err := n.Decode(&value); err != nil {
				return nil, err
			}
			return value, nil
		}
		value = n.Value
	}
	switch name := strings.TrimPrefix(n.Tag, "!"); {
	case strings.HasPrefix(name, "!"):
		return value, nil
	case name == "Ref" || name == "Condition":
		return map[string]any{name: value}, nil
	case name == "GetAtt":
		resource, attribute, _ := strings.Cut(n.Value, ".")
		return map[string]any{"Fn::GetAtt": []any{resource, attribute}}, nil
	default:
		return map[string]any{"Fn::" + name: value}, nil
	}
}

func section(sections map[string]any, name string) (map[string]any, error) {
	fields, ok := sections[name].(map[string]any)
	if !ok {
		return nil, fmt.Errorf("no section %s", name)
	}
	return fields, nil
}

// stack is a template with its parameters.
type stack struct {
	account    Account
	parameters map[string]any
	conditions map[string]any
	kinds      map[string]string          // of the resources
	queues     map[string]string          // ARNs of named queues, by the ARN that their names give them
	needs      map[string]map[string]bool // what each resource refers to
	making     string                     // the resource that is evaluated
}

// need notes that the resource that is evaluated needs another one first.
func (s *stack) need(resource string) {
	if s.making == "" {
		return
	}
	if s.needs[s.making] == nil {
		s.needs[s.making] = map[string]bool{}
	}
	s.needs[s.making][resource] = true
}

func (s *stack) withDefaults(declared map[string]any) error {
	for name := range s.parameters {
		if declared[name] == nil {
			return fmt.Errorf("no parameter %s", name)
		}
	}
	for name, parameter := range declared {
		fields := parameter.(map[string]any)
		if _, ok := s.parameters[name]; !ok {
			if fields["Default"] == nil {
				return fmt.Errorf("parameter %s has no value", name)
			}
			s.parameters[name] = fields["Default"]
		}
		value := s.parameters[name]
		if allowed, ok := fields["AllowedValues"].([]any); ok && !contains(allowed, value) {
			return fmt.Errorf("parameter %s cannot be %v", name, value)
		}
		if pattern, ok := fields["AllowedPattern"].(string); ok && !matched(pattern, value) {
			return fmt.Errorf("parameter %s cannot be %v", name, value)
		}
		if n, ok := value.(int); ok {
			least, hasLeast := fields["MinValue"].(int)
			most, hasMost := fields["MaxValue"].(int)
			if hasLeast && n < least || hasMost && n > most {
				return fmt.Errorf("parameter %s cannot be %d", name, n)
			}
		}
		if text, ok := value.(string); ok && fields["Type"] == "CommaDelimitedList" {
			var list []any
			for element := range strings.SplitSeq(text, ",") {
				list = append(list, element)
			}
			s.parameters[name] = list
		}
	}
	return nil
}

// matched reports whether the whole of a value matches a pattern.
func matched(pattern string, value any) bool {
	return regexp.MustCompile("^(?:" + pattern + ")$").MatchString(fmt.Sprint(value))
}

// asserted returns the first of the rules' assertions about parameters that does not hold.
func (s *stack) asserted(rules map[string]any) error {
	for name, rule := range rules {
		fields := rule.(map[string]any)
		applies, err := s.value(fields["RuleCondition"])
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		for _, assertion := range fields["Assertions"].([]any) {
			holds, err := s.value(assertion.(map[string]any)["Assert"])
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			if applies == true && holds != true {
				return fmt.Errorf("%s", assertion.(map[string]any)["AssertDescription"])
			}
		}
	}
	return nil
}

var notAlphanumeric = regexp.MustCompile(`[^0-9A-Za-z]`)

// unroll replaces each Fn::ForEach of the resources by what it makes.
func (s *stack) unroll(resources map[string]any) (map[string]any, error) {
	unrolled := map[string]any{}
	for name, resource := range resources {
		if !strings.HasPrefix(name, "Fn::ForEach::") {
			unrolled[name] = resource
			continue
		}
		loop := resource.([]any)
		identifier := loop[0].(string)
		values, err := s.value(loop[1])
		if err != nil {
			return nil, err
		}
		for _, value := range values.([]any) {
			for key, template := range loop[2].(map[string]any) {
				key = strings.ReplaceAll(key, "&{"+identifier+"}", notAlphanumeric.ReplaceAllString(value.(string), ""))
				if unrolled[key] != nil {
					return nil, fmt.Errorf("%s is there twice", key)
				}
				unrolled[key] = substitute(template, identifier, value)
			}
		}
	}
	return unrolled, nil
}

// substitute replaces each Ref to an identifier.
func substitute(template any, identifier string, value any) any {
	switch template := template.(type) {
	case map[string]any:
		if reflect.DeepEqual(template, map[string]any{"Ref": identifier}) {
			return value
		}
		replaced := map[string]any{}
		for name, field := range template {
			replaced[name] = substitute(field, identifier, value)
		}
		return replaced
	case []any:
		replaced := []any{}
		for _, element := range template {
			replaced = append(replaced, substitute(element, identifier, value))
		}
		return replaced
	}
	return template
}

// noValue takes the field or element away that it stands for.
type noValue struct{}

// value evaluates the functions in a value.
func (s *stack) value(v any) (any, error) {
	switch v := v.(type) {
	case []any:
		elements := []any{}
		for _, element := range v {
			element, err := s.value(element)
			if err != nil {
				return nil, err
			}
			if element != (noValue{}) {
				elements = append(elements, element)
			}
		}
		return elements, nil
	case map[string]any:
		if len(v) == 1 {
			for name, argument := range v {
				if name == "Ref" || strings.HasPrefix(name, "Fn::") {
					result, err := s.call(name, argument)
					if err != nil {
						return nil, fmt.Errorf("%s: %w", name, err)
					}
					return result, nil
				}
			}
		}
		fields := map[string]any{}
		for name, field := range v {
			field, err := s.value(field)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}
			if field != (noValue{}) {
				fields[name] = field
			}
		}
		return fields, nil
	}
	return v, nil
}

func (s *stack) call(function string, argument any) (any, error) {
	if function == "Fn::If" { // the one that does not evaluate all its arguments
		arguments := argument.([]any)
		holds, err := s.holds(arguments[0].(string))
		if err != nil {
			return nil, err
		}
		if holds {
			return s.value(arguments[1])
		}
		return s.value(arguments[2])
	}
	if function == "Ref" {
		return s.ref(argument.(string))
	}
	if function == "Fn::Sub" {
		return s.sub(argument)
	}
	argument, err := s.value(argument)
	if err != nil {
		return nil, err
	}
	arguments, ok := argument.([]any)
	if !ok {
		return nil, errors.New("needs a list")
	}
	switch function {
	case "Fn::GetAtt":
		return s.attribute(arguments[0].(string), arguments[1].(string))
	case "Fn::Join":
		var texts []string
		for _, text := range arguments[1].([]any) {
			texts = append(texts, fmt.Sprint(text))
		}
		return strings.Join(texts, arguments[0].(string)), nil
	case "Fn::Split":
		var elements []any
		for element := range strings.SplitSeq(arguments[1].(string), arguments[0].(string)) {
			elements = append(elements, element)
		}
		return elements, nil
	case "Fn::Equals":
		return reflect.DeepEqual(arguments[0], arguments[1]), nil
	case "Fn::And":
		return !contains(arguments, false), nil
	case "Fn::Or":
		return contains(arguments, true), nil
	case "Fn::Not":
		return arguments[0] == false, nil
	case "Fn::Contains":
		return contains(arguments[0].([]any), arguments[1]), nil
	}
	return nil, errors.New("unknown function")
}

func (s *stack) holds(condition string) (bool, error) {
	if s.conditions[condition] == nil {
		return false, fmt.Errorf("no condition %s", condition)
	}
	value, err := s.value(s.conditions[condition])
	if err != nil {
		return false, fmt.Errorf("condition %s: %w", condition, err)
	}
	return value == true, nil
}

func (s *stack) ref(name string) (any, error) {
	switch name {
	case "AWS::NoValue":
		return noValue{}, nil
	case "AWS::AccountId":
		return s.account.ID, nil
	case "AWS::Partition":
		return s.account.Partition, nil
	case "AWS::Region":
		return s.account.Region, nil
	case "AWS::StackName":
		if cluster, ok := s.parameters["ClusterName"]; ok {
			return fmt.Sprint("nth-", cluster), nil
		}
		return "nth-fan-out", nil
	}
	if value, ok := s.parameters[name]; ok {
		return value, nil
	}
	if kind := s.kinds[name]; kind != "" {
		s.need(name)
		if kind == "AWS::SNS::Topic" {
			return s.account.ARN(kind, name), nil
		}
		return name, nil
	}
	return nil, fmt.Errorf("nothing has the name %s", name)
}

func (s *stack) attribute(resource, attribute string) (any, error) {
	s.need(resource)
	switch kind := s.kinds[resource]; {
	case kind == "":
		return nil, fmt.Errorf("no resource %s", resource)
	case attribute == "Arn":
		return s.account.ARN(kind, resource), nil
	case kind == "AWS::SQS::Queue" && attribute == "QueueName":
		return resource, nil
	}
	return nil, fmt.Errorf("%s has no attribute %s", resource, attribute)
}

var variable = regexp.MustCompile(`\$\{([^}]+)\}`)

// sub replaces variables: parameters, resources, and those that are given beside the text.
func (s *stack) sub(argument any) (any, error) {
	given := map[string]any{}
	if list, ok := argument.([]any); ok && len(list) == 2 {
		values, err := s.value(list[1])
		if err != nil {
			return nil, err
		}
		argument, given = list[0], values.(map[string]any)
	}
	text, ok := argument.(string)
	if !ok {
		return nil, errors.New("needs a text")
	}
	var failed error
	replaced := variable.ReplaceAllStringFunc(text, func(match string) string {
		name := variable.FindStringSubmatch(match)[1]
		if value, ok := given[name]; ok {
			return fmt.Sprint(value)
		}
		value, err := s.ref(name)
		failed = errors.Join(failed, err)
		return fmt.Sprint(value)
	})
	if arn, ok := s.queues[replaced]; ok {
		return arn, failed
	}
	return replaced, failed
}

func contains(list []any, value any) bool {
	for _, element := range list {
		if reflect.DeepEqual(element, value) {
			return true
		}
	}
	return false
}
