// Says what CloudFormation's own description of its resources finds wrong with some:
// reads resources by name from standard input, writes a list of problems.
import { loadAwsServiceSpec } from '@aws-cdk/aws-service-spec'
import { text } from 'node:stream/consumers'

const db = await loadAwsServiceSpec()
const problems = []

// fields checks the properties of a resource, or of a type that it uses.
function fields(path, value, declared) {
  if (value === null || typeof value !== 'object' || Array.isArray(value)) {
    problems.push(`${path} is not an object`)
    return
  }
  for (const name of Object.keys(value)) {
    if (declared[name]) check(`${path}.${name}`, value[name], declared[name].type)
    else problems.push(`${path}.${name}: no such property`)
  }
  for (const name of Object.keys(declared)) {
    if (declared[name].required && !(name in value)) problems.push(`${path}.${name} is missing`)
  }
}

// fits reports whether a value could be of a type; numbers and booleans may be texts.
function fits(value, type) {
  switch (type.type) {
    case 'string': return typeof value !== 'object' && (!type.allowedValues || type.allowedValues.includes(value))
    case 'integer': return Number.isInteger(Number(value)) && typeof value !== 'object'
    case 'number': return Number.isFinite(Number(value)) && typeof value !== 'object'
    case 'boolean': return ['true', 'false'].includes(String(value))
    case 'array': return Array.isArray(value)
    case 'union': return type.types.some((t) => fits(value, t))
    case 'ref': case 'map': return typeof value === 'object' && !Array.isArray(value)
    default: return true // json, tag, date-time and null say nothing that could be checked here
  }
}

function check(path, value, type) {
  if (!fits(value, type)) {
    problems.push(`${path}: ${JSON.stringify(value)} is not of the type ${type.type}`)
    return
  }
  switch (type.type) {
    case 'array': value.forEach((element, i) => check(`${path}[${i}]`, element, type.element)); break
    case 'map': for (const key of Object.keys(value)) check(`${path}.${key}`, value[key], type.element); break
    case 'ref': fields(path, value, db.get('typeDefinition', type.reference.$ref).properties); break
    case 'union': check(path, value, type.types.find((t) => fits(value, t))); break
  }
}

const resources = JSON.parse(await text(process.stdin))
for (const [name, { Type, Properties }] of Object.entries(resources)) {
  const [resource] = db.lookup('resource', 'cloudFormationType', 'equals', Type)
  if (resource) fields(name, Properties, resource.properties)
  else problems.push(`${name}: no resource has the type ${Type}`)
}
console.log(JSON.stringify(problems))
