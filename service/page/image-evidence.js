/** The pictures: clean and adversarial under one slider, the change, the answers, and where the model looked. */

import { pictureUrl } from "./api.js";
import { attentionLayer, explainPictures } from "./attention.js";
import { h } from "./dom.js";
import { answersLine, Evidence, exhibitLine, hasEvidence } from "./evidence.js";
import { frame, labelNames } from "./frames.js";
import { imageModels } from "./models.js";
import { picture } from "./pictures.js";
import { showError } from "./problem.js";
import { slider } from "./slider.js";

const PAIRS_AT_ONCE = 4;

function attended(address, explanation, title) {
  const image = picture(address, "", { width: 112, height: 112 });
  return h("figure", { className: "frame" }, h("div", { className: "overlaid" }, image, attentionLayer(explanation, image)), h("figcaption", {}, h("span", { className: "frame-title" }, title)));
}

class ImageEvidence extends Evidence {
  attention = false;
  /** Places that wait for their two maps, and the addresses of their pictures. */
  #waiting = [];
  #working = false;
  error = h("div", { role: "alert" });

  #address(sample, kind) {
    return pictureUrl(this.evaluation.id, sample.index, kind, this.choice);
  }

  exhibit(trial) {
    const { sample } = trial;
    const nameOf = labelNames(this.report, this.choice.model);
    const [clean, adversarial] = ["clean", "adversarial"].map((kind) => this.#address(sample, kind));
    const maps = this.attention ? h("div", { className: "maps" }, h("p", { className: "card-wait" }, "looking …")) : null;
    if (maps) this.#explain(maps, clean, adversarial);
    return h("li", { className: `exhibit ${trial.outcome}` },
      answersLine(trial, nameOf),
      h("div", { className: "show" },
        slider(clean, adversarial, `image ${sample.index}`),
        frame(this.#address(sample, "perturbation"), `what the attack changed in image ${sample.index}, amplified`, "change, amplified", `within ${this.choice.eps}`)),
      maps,
      exhibitLine(trial, this.choice, nameOf));
  }

  extras() {
    const served = imageModels.find(this.report.summary.models.find(({ name }) => name === this.choice.model).digest);
    if (!served) return [];
    return [h("button", { type: "button", className: "chip-button single", id: "evidence-attention", "aria-pressed": String(this.attention), onclick: () => this.draw({ attention: !this.attention }) }, "attention before and after")];
  }

  draw(change) {
    this.#waiting = [];
    showError(this.error, null);
    super.draw(change);
  }

  #explain(place, clean, adversarial) {
    this.#waiting.push({ place, addresses: [clean, adversarial] });
    if (!this.#working) queueMicrotask(() => this.#work());
  }

  /** A few pairs at a time: predictions of others go on between them. */
  async #work() {
    if (this.#working) return;
    this.#working = true;
    try {
      while (this.#waiting.length && !this.signal.aborted) await this.#look(this.#waiting.splice(0, PAIRS_AT_ONCE));
    } catch (error) {
      if (!this.signal.aborted) {
        this.draw({ attention: false });
        showError(this.error, error);
      }
    }
    this.#working = false;
  }

  async #look(pairs) {
    const { digest } = this.report.summary.models.find(({ name }) => name === this.choice.model);
    const model = imageModels.reference(imageModels.find(digest));
    const maps = await explainPictures(pairs.flatMap(({ addresses }) => addresses), model, this.signal);
    pairs.forEach(({ place, addresses }, i) => place.replaceChildren(
      attended(addresses[0], maps[2 * i], "attention before"), attended(addresses[1], maps[2 * i + 1], "attention after")));
  }
}

/** The section with the pictures of a finished evaluation; null where no attack made any. */
export function imageEvidence(evaluation, report, signal) {
  if (!hasEvidence(report)) return null;
  const evidence = new ImageEvidence(evaluation, report, signal);
  const section = evidence.section("Evidence", "Drag a slider, or use the arrow keys on it, to go from the clean picture to the adversarial one.");
  evidence.controls.after(evidence.error);
  return section;
}
