#!/bin/sh
# Predict, evaluate and fetch the report, with curl alone:
#   sh deploy/clients/with_curl.sh IMAGE [URL] [KEY]
set -eu
image=$1
url=${2:-http://127.0.0.1:3000}
key=${3:-}
[ -r "${image}" ] || { echo "no such file: ${image}" >&2; exit 2; }

ask() {
    if [ -n "${key}" ]; then
        # From standard input, so that no list of processes shows the key.
        printf 'header = "Authorization: Bearer %s"\n' "${key}" | curl --config - --silent --show-error --fail-with-body "$@" || exit 2
    else
        curl --silent --show-error --fail-with-body "$@" || exit 2
    fi
}

ask "${url}/v1/models"
echo
ask --form "images=@${image}" --form top_k=3 "${url}/classify"
echo
ask --json '{"texts": ["A moving film, brilliantly acted."]}' "${url}/classify_text"
echo

spec='{"attacks": [{"name": "fgsm", "eps": ["4/255"]}]}'
place=$(ask --form "spec=${spec}" --form "images=@${image}" --dump-header - --output /dev/null \
    "${url}/v1/evaluations" | sed -n 's/^[Ll]ocation: *\([^[:space:]]*\).*/\1/p')
[ -n "${place}" ] || exit 2
while ask "${url}${place}?wait=20" | grep -Eq '"status": *"(queued|running)"'; do
    echo "waiting" >&2
done
ask --output report.html "${url}${place}/report.html"
echo "report.html is about ${place}"
