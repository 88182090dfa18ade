// Vercel's AI SDK: its own telemetry, with the tools run by the SDK. In version 7 it comes from @ai-sdk/otel.
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { pathToFileURL } from 'node:url'

const at = createRequire(`${process.env.MODULES}/package.json`)
const load = (name) => import(pathToFileURL(at.resolve(name)).href)
const version = (name) => JSON.parse(readFileSync(`${process.env.MODULES}/node_modules/${name}/package.json`)).version

const { NodeTracerProvider, SimpleSpanProcessor } = await load('@opentelemetry/sdk-trace-node')
const { OTLPTraceExporter } = await load('@opentelemetry/exporter-trace-otlp-http')
const { resourceFromAttributes } = await load('@opentelemetry/resources')
const { createOpenAICompatible } = await load('@ai-sdk/openai-compatible')
const ai = await load('ai')
const { z } = await load('zod')

const provider = new NodeTracerProvider({
  resource: resourceFromAttributes({ 'service.name': 'mail-assistant', 'service.version': '7' }),
  spanProcessors: [new SimpleSpanProcessor(new OTLPTraceExporter({ url: `${process.env.HERE}/v1/traces` }))],
})
provider.register()
const made = ['ai', '@ai-sdk/openai-compatible', '@opentelemetry/sdk-trace-node']
const major = Number(version('ai').split('.')[0])
if (major >= 7) {
  const { OpenTelemetry } = await load('@ai-sdk/otel')
  ai.registerTelemetry(new OpenTelemetry({ runtimeContext: true, usage: true }))
  made.push('@ai-sdk/otel')
}

const model = createOpenAICompatible({ name: 'tiny', baseURL: `${process.env.HERE}/v1`, apiKey: 'nothing', includeUsage: true })('tiny-1')
const tools = {
  find_contact: ai.tool({
    description: "Find a person's address",
    inputSchema: z.object({ name: z.string() }),
    execute: async ({ name }) => `${name.toLowerCase()}@example.org`,
  }),
  send_mail: ai.tool({
    description: 'Send a mail',
    inputSchema: z.object({ to: z.string(), body: z.string() }),
    execute: async () => {
      throw new Error('mailbox is full')
    },
  }),
}
const telemetry =
  major >= 7
    ? { telemetry: { functionId: 'mail-assistant', includeRuntimeContext: { sessionId: true, userId: true } }, runtimeContext: { sessionId: 'session-42', userId: 'ann' } }
    : { experimental_telemetry: { isEnabled: true, functionId: 'mail-assistant', metadata: { sessionId: 'session-42', userId: 'ann', tags: ['golden'] } } }
const shared = { model, tools, system: 'You help with mail.', instructions: 'You help with mail.', stopWhen: (ai.stepCountIs ?? ai.isStepCount)(4), temperature: 0.5, ...telemetry }
if (major >= 7) delete shared.system
else delete shared.instructions

const tracer = provider.getTracer('mail-assistant', '7')
await tracer.startActiveSpan('answer mail', async (root) => {
  const messages = [{ role: 'user', content: "What is Bako's address?" }]
  const first = await ai.generateText({ ...shared, messages })
  messages.push(...(first.responseMessages ?? first.response.messages), { role: 'user', content: 'Mail him that the picnic is off.' })
  const second = ai.streamText({ ...shared, messages, onError: () => {} })
  for await (const _ of second.textStream);
  root.end()
})
await provider.forceFlush()
await provider.shutdown()
console.log(made.map((name) => `${name} ${version(name)}`).join('; '))
