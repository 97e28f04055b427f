/** An evaluation as others ask for it: the spec, a curl command, a Python script. */

import { inputKind } from "./attacks.js";
import { announce, h } from "./dom.js";

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** By its title; the inputs are for the reader to name. */
function requests(spec, priority) {
  const address = new URL("v1/evaluations", document.baseURI).href;
  const data = inputKind(spec) === "text" ? "DATA.csv" : "DATA.zip";
  const usual = priority === "normal";
  return {
    "as spec": JSON.stringify(spec, null, 2),
    "as curl": `curl -F ${quoted(`spec=${JSON.stringify(spec)}`)} \\\n     ${usual ? "" : `-F priority=${priority} `}-F archive=@${data} ${address}`,
    "as Python": `import json\n\nimport httpx\n\nspec = json.loads(${JSON.stringify(JSON.stringify(spec))})\nwith open("${data}", "rb") as archive:\n    answer = httpx.post(\n        "${address}",\n        data={"spec": json.dumps(spec)${usual ? "" : `, "priority": "${priority}"`}},\n        files={"archive": archive},\n    )\nprint(answer.json())`,
  };
}

function block(title) {
  const text = h("pre", { tabIndex: 0 });
  const copy = () => navigator.clipboard.writeText(text.textContent).then(() => announce("Copied."), () => announce("This browser does not let the page copy."));
  return h("details", { className: "request" }, h("summary", {}, title),
    navigator.clipboard && h("button", { type: "button", className: "quiet", onclick: copy }, "Copy"), text);
}

/** The blocks to open and copy; `show` fills them. */
export class Requests {
  blocks = ["as spec", "as curl", "as Python"].map(block);

  show(spec, priority) {
    Object.values(requests(spec, priority)).forEach((text, i) => { this.blocks[i].querySelector("pre").textContent = text; });
  }
}
