package iac

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
	ctyjson "github.com/zclconf/go-cty/cty/json"
)

// Terraform returns the resources of a module by their addresses, with the
// expressions that it uses evaluated for an account and variables. twin tells
// the type and name that a resource has in CloudFormation, for its ARN.
func Terraform(
	files map[string][]byte, account Account, variables map[string]cty.Value,
	twin func(address string) (kind, name string),
) (map[string]Resource, error) {
	m := module{
		account: account, twin: twin, made: map[string]Resource{},
		context: &hcl.EvalContext{Functions: functions, Variables: map[string]cty.Value{"data": data(account)}},
	}
	blocks, err := parsed(files)
	if err != nil {
		return nil, err
	}
	for _, step := range []func(hclsyntax.Blocks) error{
		func(b hclsyntax.Blocks) error { return m.variables(b, variables) },
		m.locals, m.declare, m.make, m.outputs,
	} {
		if err := step(blocks); err != nil {
			return nil, err
		}
	}
	return m.made, nil
}

// Unplanned returns the resources of a module of which Terraform cannot say how many there are before it creates what
// the unknown values among the variables come from. It refuses such a plan.
func Unplanned(files map[string][]byte, account Account, variables map[string]cty.Value) ([]string, error) {
	var addresses []string
	m := module{context: &hcl.EvalContext{Functions: functions, Variables: map[string]cty.Value{"data": data(account)}}}
	blocks, err := parsed(files)
	if err != nil {
		return nil, err
	}
	if err := m.variables(blocks, variables); err != nil {
		return nil, err
	}
	if err := m.locals(blocks); err != nil {
		return nil, err
	}
	for _, b := range blocks {
		attribute := b.Body.Attributes["for_each"]
		if b.Type != "resource" || attribute == nil {
			continue
		}
		each, problems := attribute.Expr.Value(m.context)
		if problems.HasErrors() {
			return nil, problems
		}
		// The elements of a set are its keys.
		if !each.IsKnown() || each.Type().IsSetType() && !each.IsWhollyKnown() {
			addresses = append(addresses, b.Labels[0]+"."+b.Labels[1])
		}
	}
	return addresses, nil
}

func parsed(files map[string][]byte) (blocks hclsyntax.Blocks, err error) {
	for name, text := range files {
		file, problems := hclsyntax.ParseConfig(text, name, hcl.InitialPos)
		if problems.HasErrors() {
			return nil, problems
		}
		blocks = append(blocks, file.Body.(*hclsyntax.Body).Blocks...)
	}
	return blocks, nil
}

var functions = map[string]function.Function{
	"can":         tryfunc.CanFunc,
	"coalesce":    stdlib.CoalesceFunc,
	"concat":      stdlib.ConcatFunc,
	"contains":    stdlib.ContainsFunc,
	"flatten":     stdlib.FlattenFunc,
	"join":        stdlib.JoinFunc,
	"jsonencode":  stdlib.JSONEncodeFunc,
	"length":      length,
	"merge":       stdlib.MergeFunc,
	"regex":       stdlib.RegexFunc,
	"replace":     stdlib.ReplaceFunc,
	"setsubtract": stdlib.SetSubtractFunc,
	"setunion":    stdlib.SetUnionFunc,
	"toset":       stdlib.MakeToFunc(cty.Set(cty.DynamicPseudoType)),
	"trimsuffix":  stdlib.TrimSuffixFunc,
	"values":      stdlib.ValuesFunc,
}

// length is that of a text or of a collection.
var length = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "value", Type: cty.DynamicPseudoType, AllowDynamicType: true}},
	Type:   function.StaticReturnType(cty.Number),
	Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
		if args[0].Type() == cty.String {
			return stdlib.Strlen(args[0])
		}
		return args[0].Length(), nil
	},
})

func data(a Account) cty.Value {
	current := func(name, value string) cty.Value {
		return cty.ObjectVal(map[string]cty.Value{"current": cty.ObjectVal(map[string]cty.Value{name: cty.StringVal(value)})})
	}
	return cty.ObjectVal(map[string]cty.Value{
		"aws_caller_identity": current("account_id", a.ID),
		"aws_partition":       current("partition", a.Partition),
		"aws_region":          current("id", a.Region),
	})
}

// module is a Terraform module with its variables.
type module struct {
	account Account
	twin    func(address string) (kind, name string)
	context *hcl.EvalContext
	made    map[string]Resource
}

func (m *module) variables(blocks hclsyntax.Blocks, given map[string]cty.Value) error {
	values := map[string]cty.Value{}
	for _, b := range blocks {
		if b.Type != "variable" {
			continue
		}
		name := b.Labels[0]
		value, ok := given[name]
		if !ok {
			if b.Body.Attributes["default"] == nil {
				return fmt.Errorf("variable %s has no value", name)
			}
			var problems hcl.Diagnostics
			if value, problems = b.Body.Attributes["default"].Expr.Value(nil); problems.HasErrors() {
				return problems
			}
		}
		kind, problems := typeOf(b.Body.Attributes["type"].Expr)
		if problems.HasErrors() {
			return problems
		}
		var err error
		if values[name], err = convert.Convert(value, kind); err != nil {
			return fmt.Errorf("variable %s: %w", name, err)
		}
	}
	for name := range given {
		if _, ok := values[name]; !ok {
			return fmt.Errorf("no variable %s", name)
		}
	}
	m.context.Variables["var"] = cty.ObjectVal(values)
	for _, b := range blocks {
		if b.Type != "variable" {
			continue
		}
		if err := m.checked(b.Body, "validation"); err != nil {
			return fmt.Errorf("variable %s: %w", b.Labels[0], err)
		}
	}
	return nil
}

// typeOf reads the types that the module's variables have.
func typeOf(e hclsyntax.Expression) (cty.Type, hcl.Diagnostics) {
	call, ok := e.(*hclsyntax.FunctionCallExpr)
	if !ok {
		return map[string]cty.Type{"string": cty.String, "bool": cty.Bool, "number": cty.Number}[hcl.ExprAsKeyword(e)], nil
	}
	element, problems := typeOf(call.Args[0])
	switch call.Name {
	case "set":
		return cty.Set(element), problems
	case "map":
		return cty.Map(element), problems
	}
	return cty.List(element), problems
}

// checked returns the error message of the first of a block's conditions that does not hold.
func (m *module) checked(body *hclsyntax.Body, kind string) error {
	for _, b := range body.Blocks {
		if b.Type != kind {
			continue
		}
		holds, problems := b.Body.Attributes["condition"].Expr.Value(m.context)
		if problems.HasErrors() {
			return problems
		}
		if holds.IsKnown() && holds.False() {
			message, _ := b.Body.Attributes["error_message"].Expr.Value(m.context)
			return errors.New(message.AsString())
		}
	}
	return nil
}

// locals evaluates the local values, those first that others need.
func (m *module) locals(blocks hclsyntax.Blocks) error {
	pending := map[string]hclsyntax.Expression{}
	for _, b := range blocks {
		if b.Type == "locals" {
			for name, attribute := range b.Body.Attributes {
				pending[name] = attribute.Expr
			}
		}
	}
	values := map[string]cty.Value{}
	for len(pending) > 0 {
		m.context.Variables["local"] = cty.ObjectVal(values)
		before := len(pending)
		var last hcl.Diagnostics
		for name, expression := range pending {
			value, problems := expression.Value(m.context)
			if problems.HasErrors() {
				last = problems
				continue
			}
			values[name] = value
			delete(pending, name)
		}
		if len(pending) == before {
			return last
		}
	}
	m.context.Variables["local"] = cty.ObjectVal(values)
	return nil
}

// instances are the values of each.key and each.value that a block is made for;
// nil is the one of a block without for_each.
func (m *module) instances(b *hclsyntax.Block) (map[string]cty.Value, error) {
	attribute := b.Body.Attributes["for_each"]
	if attribute == nil {
		return nil, nil
	}
	each, problems := attribute.Expr.Value(m.context)
	if problems.HasErrors() {
		return nil, problems
	}
	values := map[string]cty.Value{}
	for it := each.ElementIterator(); it.Next(); {
		key, value := it.Element()
		values[key.AsString()] = value
	}
	return values, nil
}

// declare gives each resource the attributes that others refer to.
func (m *module) declare(blocks hclsyntax.Blocks) error {
	kinds := map[string]map[string]cty.Value{}
	for _, b := range blocks {
		if b.Type != "resource" {
			continue
		}
		instances, err := m.instances(b)
		if err != nil {
			return err
		}
		address := b.Labels[0] + "." + b.Labels[1]
		value := m.attributes(address)
		if instances != nil {
			all := map[string]cty.Value{}
			for key := range instances {
				all[key] = m.attributes(fmt.Sprintf("%s[%q]", address, key))
			}
			value = cty.ObjectVal(all)
		}
		if kinds[b.Labels[0]] == nil {
			kinds[b.Labels[0]] = map[string]cty.Value{}
		}
		kinds[b.Labels[0]][b.Labels[1]] = value
	}
	for kind, resources := range kinds {
		m.context.Variables[kind] = cty.ObjectVal(resources)
	}
	return nil
}

func (m *module) attributes(address string) cty.Value {
	kind, name := m.twin(address)
	values := map[string]cty.Value{}
	for _, attribute := range []string{"id", "name", "url"} {
		values[attribute] = cty.StringVal(name)
	}
	if kind != "" {
		values["arn"] = cty.StringVal(m.account.ARN(kind, name))
	}
	return cty.ObjectVal(values)
}

// make evaluates the resources.
func (m *module) make(blocks hclsyntax.Blocks) error {
	for _, b := range blocks {
		if b.Type != "resource" {
			continue
		}
		instances, err := m.instances(b)
		if err != nil {
			return err
		}
		address := b.Labels[0] + "." + b.Labels[1]
		if instances == nil {
			if err := m.makeOne(b, address); err != nil {
				return err
			}
		}
		for key, value := range instances {
			m.context.Variables["each"] = cty.ObjectVal(map[string]cty.Value{"key": cty.StringVal(key), "value": value})
			if err := m.makeOne(b, fmt.Sprintf("%s[%q]", address, key)); err != nil {
				return err
			}
		}
		delete(m.context.Variables, "each")
	}
	return nil
}

func (m *module) makeOne(b *hclsyntax.Block, address string) error {
	properties, err := m.properties(b.Body)
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	for _, inner := range b.Body.Blocks {
		if inner.Type == "lifecycle" {
			if err := m.checked(inner.Body, "precondition"); err != nil {
				return fmt.Errorf("%s: %w", address, err)
			}
		}
	}
	m.made[address] = Resource{Type: b.Labels[0], Properties: properties}
	return nil
}

// outputs sees that each can be evaluated.
func (m *module) outputs(blocks hclsyntax.Blocks) error {
	for _, b := range blocks {
		if b.Type != "output" {
			continue
		}
		if _, problems := b.Body.Attributes["value"].Expr.Value(m.context); problems.HasErrors() {
			return problems
		}
	}
	return nil
}

// properties are a body's attributes, and its blocks as lists.
func (m *module) properties(body *hclsyntax.Body) (map[string]any, error) {
	properties := map[string]any{}
	for name, attribute := range body.Attributes {
		if name == "for_each" {
			continue
		}
		value, problems := attribute.Expr.Value(m.context)
		if problems.HasErrors() {
			return nil, problems
		}
		decoded, err := decoded(value)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if decoded != nil { // null is as if the attribute were not there
			properties[name] = decoded
		}
	}
	for _, b := range body.Blocks {
		var err error
		switch b.Type {
		case "lifecycle":
		case "dynamic":
			err = m.dynamic(b, properties)
		default:
			err = m.block(b.Type, b.Body, properties)
		}
		if err != nil {
			return nil, err
		}
	}
	return properties, nil
}

func (m *module) block(name string, body *hclsyntax.Body, properties map[string]any) error {
	inner, err := m.properties(body)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	list, _ := properties[name].([]any)
	properties[name] = append(list, inner)
	return nil
}

// dynamic evaluates a block's content for each element, whose name is the block's.
func (m *module) dynamic(b *hclsyntax.Block, properties map[string]any) error {
	instances, err := m.instances(b)
	if err != nil {
		return err
	}
	name := b.Labels[0]
	content := slices.IndexFunc(b.Body.Blocks, func(inner *hclsyntax.Block) bool { return inner.Type == "content" })
	for key, value := range instances {
		m.context.Variables[name] = cty.ObjectVal(map[string]cty.Value{"key": cty.StringVal(key), "value": value})
		if err := m.block(name, b.Body.Blocks[content].Body, properties); err != nil {
			return err
		}
	}
	delete(m.context.Variables, name)
	return nil
}

// decoded is a value in the terms of JSON.
func decoded(value cty.Value) (any, error) {
	text, err := ctyjson.Marshal(value, value.Type())
	if err != nil {
		return nil, err
	}
	var v any
	return v, json.Unmarshal(text, &v)
}
