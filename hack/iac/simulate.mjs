// Asks IAM's rules about requests: reads a list of simulations from standard input,
// writes for each Allowed, ExplicitlyDenied, ImplicitlyDenied or what is wrong with it.
import { runSimulation } from '@cloud-copilot/iam-simulate'
import { text } from 'node:stream/consumers'

const verdicts = []
for (const simulation of JSON.parse(await text(process.stdin))) {
  const result = await runSimulation(simulation, {})
  verdicts.push(result.resultType === 'error' ? `error: ${JSON.stringify(result.errors)}` : result.overallResult)
}
console.log(JSON.stringify(verdicts))
