"""OpenTelemetry's own SDK, sending traces and logs to the recorder."""

from opentelemetry import _logs, trace
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Tracer


def start() -> Tracer:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    logger = LoggerProvider()
    logger.add_log_record_processor(SimpleLogRecordProcessor(OTLPLogExporter()))
    _logs.set_logger_provider(logger)
    return trace.get_tracer("mail-assistant", "7")


def stop() -> None:
    for provider in (trace.get_tracer_provider(), _logs.get_logger_provider()):
        provider.shutdown()  # type: ignore[attr-defined]
