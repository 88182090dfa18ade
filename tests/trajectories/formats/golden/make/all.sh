#!/bin/sh
# Makes every fixture anew. The libraries go into environments of their own under DIR, never into the project's.
#   DIR=/tmp/golden PYTHON=../../../../../.venv/bin/python sh all.sh
set -eu
cd "$(dirname "$0")"
DIR=${DIR:-/tmp/golden} PYTHON=${PYTHON:-../../../../../.venv/bin/python}
OTLP=opentelemetry-exporter-otlp-proto-http
mkdir -p "$DIR"

environment() { # NAME PACKAGE...
    name=$1
    shift
    [ -d "$DIR/$name" ] || { python3 -m venv "$DIR/$name" && "$DIR/$name/bin/pip" install -q "$@"; }
}
modules() { # NAME PACKAGE...
    name=$1
    shift
    [ -d "$DIR/$name" ] || { mkdir "$DIR/$name" && (cd "$DIR/$name" && npm init -y >/dev/null && npm install "$@"); }
}
record() { # FIXTURE ENVIRONMENT SCRIPT [ARGUMENT...]
    fixture=$1 name=$2
    shift 2
    "$PYTHON" record.py "$fixture" -- "$DIR/$name/bin/python" "$@"
}

environment openai opentelemetry-instrumentation-openai-v2 opentelemetry-util-genai==0.4b0 "openai<3" httpx opentelemetry-sdk $OTLP \
    openinference-instrumentation-openai openinference-semantic-conventions
environment traceloop traceloop-sdk "openai<3" httpx
environment traceloop-old "traceloop-sdk<0.41" "openai<2"
environment pydantic "pydantic-ai-slim[openai]" logfire $OTLP httpx
environment pydantic-old "pydantic-ai-slim[openai]<1" "logfire<5" "opentelemetry-sdk<1.36" "$OTLP<1.36"
environment langsmith "langsmith[otel]" openai
environment langfuse langfuse openai
environment mlflow mlflow-skinny openai numpy pandas "opentelemetry-sdk<1.39" "$OTLP<1.39"
modules vercel-5 ai@5 @ai-sdk/openai-compatible@1 zod@3 @opentelemetry/sdk-trace-node @opentelemetry/exporter-trace-otlp-http @opentelemetry/resources @opentelemetry/api
modules vercel-7 ai@7 @ai-sdk/otel@1 @ai-sdk/openai-compatible@3 zod@4 @opentelemetry/sdk-trace-node @opentelemetry/exporter-trace-otlp-http @opentelemetry/resources @opentelemetry/api

CONTENT=OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT LATEST=OTEL_SEMCONV_STABILITY_OPT_IN=gen_ai_latest_experimental
(export $CONTENT=true && record openai-v2 openai openai_v2.py)
(export $CONTENT=SPAN_ONLY $LATEST && record openai-v2-latest-span openai openai_v2.py)
(export $CONTENT=EVENT_ONLY $LATEST && record openai-v2-latest-event openai openai_v2.py)
record openinference openai openinference_openai.py
record openinference-responses openai openinference_openai.py responses
record traceloop traceloop traceloop_sdk.py
record traceloop-responses traceloop traceloop_sdk.py responses
record traceloop-old traceloop-old traceloop_sdk.py
record pydantic-ai pydantic pydantic_logfire.py conversation
record pydantic-ai-v1 pydantic-old pydantic_logfire.py version=1
record pydantic-ai-v2 pydantic-old pydantic_logfire.py version=2
record logfire-openai pydantic logfire_openai.py
record logfire-openai-old pydantic-old logfire_openai.py
record langsmith langsmith langsmith_otel.py
record langfuse langfuse langfuse_sdk.py
record mlflow mlflow mlflow_tracing.py
(export MLFLOW_ENABLE_OTEL_GENAI_SEMCONV=true && record mlflow-genai mlflow mlflow_tracing.py)
MODULES="$DIR/vercel-5" "$PYTHON" record.py vercel-5 -- node vercel.mjs
MODULES="$DIR/vercel-7" "$PYTHON" record.py vercel-7 -- node vercel.mjs
