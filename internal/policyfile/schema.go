package policyfile

import (
	"encoding/json"
)

// Schema is the JSON Schema of policy files, for editors. What only the whole of a file tells, such as
// whether a window exists, it does not say: [Parse] does.
// https://json-schema.org/draft-07
func Schema() []byte {
	text, _ := json.MarshalIndent(SchemaObject(), "", "  ") // it is made of texts, numbers and lists
	return append(text, '\n')
}

// SchemaObject is Schema as maps and lists, of which the caller may change the outermost.
func SchemaObject() map[string]any {
	looks := new(written).value().schema
	looks["$schema"] = "http://json-schema.org/draft-07/schema#"
	looks["title"] = "Policy of node-termination-handler"
	return looks
}
