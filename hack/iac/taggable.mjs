// Says which types of resources can have tags: reads types from standard input, writes those that can.
import { loadAwsServiceSpec } from '@aws-cdk/aws-service-spec'
import { text } from 'node:stream/consumers'

const db = await loadAwsServiceSpec()
const types = JSON.parse(await text(process.stdin))
console.log(JSON.stringify(types.filter((type) => {
  const [resource] = db.lookup('resource', 'cloudFormationType', 'equals', type)
  return resource?.tagInformation !== undefined
})))
