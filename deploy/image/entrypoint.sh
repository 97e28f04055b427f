#!/bin/sh
# Serve, or run the command that was given. Only ASSAY_STATE has to be writable: what BentoML and
# Python write for themselves goes to /tmp, or below ASSAY_STATE where /tmp is read-only.
set -eu

fail() { # as the service says it, in its log's format
    if [ "${ASSAY_LOG_FORMAT:-auto}" = text ] || { [ "${ASSAY_LOG_FORMAT:-auto}" = auto ] && [ -t 2 ]; }; then
        echo "Assay cannot start: $1" >&2
    else
        printf '{"level": "critical", "logger": "entrypoint", "message": "Assay cannot start: %s"}\n' "$1" >&2
    fi
    exit 1
}

scratch=${TMPDIR:-/tmp}/assay
if ! mkdir -p "${scratch}" 2>/dev/null; then
    # One folder a container, since evaluators of one team share a volume; emptied at its start.
    scratch=${ASSAY_STATE}/scratch/$(hostname)
    rm -rf "${scratch}" 2>/dev/null || true
fi
mkdir -p "${scratch}/tmp" "${scratch}/bentoml" 2>/dev/null ||
    fail "user $(id -u) must be able to write to ${TMPDIR:-/tmp} or to ASSAY_STATE=${ASSAY_STATE}"
export TMPDIR="${scratch}/tmp" HOME="${scratch}" BENTOML_HOME="${scratch}/bentoml"

if [ $# -gt 0 ]; then
    exec "$@"
fi
# The default of ASSAY_PREDICT_TIMEOUT_S: a prediction that was accepted is answered.
exec bentoml serve /app/bento --timeout-graceful-shutdown 30
