// An agent with telemetry in JavaScript: `node client.cjs ENDPOINT KEY`, with the SDK on NODE_PATH.
const { BasicTracerProvider, BatchSpanProcessor } = require("@opentelemetry/sdk-trace-base");
const { OTLPTraceExporter } = require("@opentelemetry/exporter-trace-otlp-http");
const { resourceFromAttributes } = require("@opentelemetry/resources");

const [endpoint, key] = process.argv.slice(2);
const exporter = new OTLPTraceExporter({ url: `${endpoint}/v1/traces`, headers: { Authorization: `Bearer ${key}` } });
const provider = new BasicTracerProvider({
  resource: resourceFromAttributes({ "service.name": process.env.MARK }),
  spanProcessors: [new BatchSpanProcessor(exporter)],
});
const tracer = provider.getTracer("agent");
for (const name of ["invoke_agent", "step 0", "step 1"]) tracer.startSpan(name).end();
provider.forceFlush().then(
  () => provider.shutdown(),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
