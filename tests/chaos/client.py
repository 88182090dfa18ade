"""An agent with telemetry as people set it up: `python -m tests.chaos.client KIND ENDPOINT KEY MODEL_URL`."""

import os
import sys

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter


def exporter_of(kind: str, endpoint: str, key: str) -> SpanExporter:
    if kind == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

        return Grpc(endpoint=endpoint, insecure=True, headers=(("authorization", f"Bearer {key}"),))
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

    return Http(endpoint=f"{endpoint}/v1/traces", headers={"Authorization": f"Bearer {key}"})


def main(kind: str, endpoint: str, key: str, model: str) -> None:
    provider = TracerProvider(resource=Resource.create({"service.name": os.environ["MARK"]}))
    provider.add_span_processor(BatchSpanProcessor(exporter_of(kind, endpoint, key)))
    if kind in ("http", "grpc"):
        tracer = provider.get_tracer("agent")
        with tracer.start_as_current_span("invoke_agent"):
            for number in range(2):
                with tracer.start_as_current_span(f"step {number}"):
                    pass
    else:
        instrument(kind, provider)
        import openai

        client = openai.OpenAI(base_url=model, api_key="sk-none", max_retries=0)
        client.chat.completions.create(model="model-1", messages=[{"role": "user", "content": "When?"}])
    assert provider.force_flush(60_000)
    provider.shutdown()


def instrument(kind: str, provider: TracerProvider) -> None:
    if kind == "openinference":
        from openinference.instrumentation.openai import OpenAIInstrumentor as OpenInference

        OpenInference().instrument(tracer_provider=provider)
    else:
        from opentelemetry.instrumentation.openai import OpenAIInstrumentor as OpenLLMetry

        OpenLLMetry().instrument(tracer_provider=provider)


if __name__ == "__main__":
    main(*sys.argv[1:])
