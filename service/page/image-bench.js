/** The bench of images: pictures with bars beside them and, if wanted, the model's attention over them. */

import { classify } from "./api.js";
import { attentionLayer } from "./attention.js";
import { bars, labelField } from "./bars.js";
import { Bench } from "./bench.js";
import { byId, h } from "./dom.js";
import { imageModels } from "./models.js";
import { picture } from "./pictures.js";
import { showError } from "./problem.js";
import { imageTray, uploads } from "./tray.js";

let explain = false;

function face(item, model) {
  const image = picture(item.url, "", { width: 84, height: 84 });
  image.addEventListener("error", () => image.replaceWith(h("span", { className: "no-preview" }, "no preview")));
  const { explanation } = item.prediction ?? {};
  return [
    h("div", { className: "card-picture" }, image, explain && explanation ? attentionLayer(explanation, image) : null),
    h("div", { className: "card-text" },
      h("p", { className: "file", title: item.name }, item.name),
      bars(item, model), labelField(item, model, imageTray)),
  ];
}

function setExplain(wanted) {
  explain = wanted;
  byId("explain").setAttribute("aria-pressed", String(wanted));
  byId("explain-note").hidden = !wanted;
}

/** Not every model has attention to show: the predictions stay, and the button goes back. */
function withoutAttention(error) {
  if (error.code !== "not_explainable") return false;
  setExplain(false);
  showError(byId("image-error"), error);
  return true;
}

/** Wires the bench of images. */
export function startImageBench() {
  const bench = new Bench({
    tray: imageTray,
    models: imageModels,
    prefix: "image",
    atOnce: classify.limit,
    shownFirst: matchMedia("(max-width: 46rem)").matches ? 6 : 12,
    ask: async (items, model, signal) => classify(await uploads(items), model, { explain, signal }),
    answered: ({ prediction }) => prediction !== null && (!explain || prediction.explanation !== undefined),
    face,
  });
  bench.onTrouble = withoutAttention;
  byId("explain").addEventListener("click", () => {
    setExplain(!explain);
    // New objects: the cards are drawn again with or without the glow.
    for (const item of imageTray.items) if (item.prediction) item.prediction = { ...item.prediction };
    bench.refresh();
  });
  imageTray.addEventListener("change", () => { byId("explain").hidden = imageTray.items.length === 0; });
}
