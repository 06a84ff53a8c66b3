package policyfile

import (
	"encoding/json"
	"strings"
)

// Keys are tables in Markdown of the keys of a rule for nodes and of one for pods, in the order of the
// fields.
func Keys() (nodes, pods string) {
	return keyTable(new(nodeRule).value()), keyTable(new(podRule).value())
}

var inMarkdown = strings.NewReplacer("|", `\|`, "*", `\*`)

func keyTable(rule value) string {
	var b strings.Builder
	b.WriteString("| key | what it says |\n|---|---|\n")
	for _, f := range rule.fields {
		words := f.words
		if f.required {
			words += " Required."
		}
		b.WriteString("| `" + f.key + "` | " + inMarkdown.Replace(words) + " |\n")
	}
	return b.String()
}

// Schema is the JSON Schema of policy files, for editors. What only the whole of a file tells, such as
// whether a window exists, it does not say: [Parse] does.
// https://json-schema.org/draft-07
func Schema() []byte {
	text, err := json.MarshalIndent(SchemaObject(), "", "  ")
	if err != nil { // it is made of texts, numbers and lists
		return nil
	}
	return append(text, '\n')
}

// SchemaObject is Schema as maps and lists, of which the caller may change the outermost.
func SchemaObject() map[string]any {
	looks := new(written).value().schema
	looks["$schema"] = "http://json-schema.org/draft-07/schema#"
	looks["title"] = "Policy of node-termination-handler"
	return looks
}
