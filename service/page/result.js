/** A finished evaluation: the sections of its report, with the samples to explore and the files to download. */

import { fetchReportPage, reportUrl } from "./api.js";
import { h } from "./dom.js";
import { downloadLink } from "./pictures.js";

const FORMS = [
  ["report.html", "a page in one file, to keep or to send"],
  ["report.json", "every score of every input, for programs"],
  ["samples.parquet", "the same as a table"],
  ["card.md", "the robustness card, in Markdown"],
  ["report.junit.xml", "for a build server"],
];

const style = new CSSStyleSheet();
document.adoptedStyleSheets.push(style);

const reportLink = ({ id }, form, text) => downloadLink(reportUrl(id, form), `assay-${id.slice(0, 8)}-${form}`, text, { "data-form": form });

function downloads(evaluation) {
  return h("section", { "aria-labelledby": "downloads-title" },
    h("h2", { id: "downloads-title" }, "Download"),
    h("ul", { className: "downloads" }, FORMS.map(([form, what]) => h("li", {}, reportLink(evaluation, form, form), h("span", { className: "hint" }, what)))));
}

/**
 * The report in this page, in its own style.
 * @param {HTMLElement | null} evidence what stands in the place of the report's own samples.
 */
export async function reportSections(evaluation, evidence, signal) {
  const [before, css, after] = (await fetchReportPage(evaluation.id, signal)).split(/<\/?style>/);
  style.replaceSync(css); // a style element would break this page's policy
  const page = new DOMParser().parseFromString(before + after, "text/html");
  const body = h("div", { className: "report" });
  body.append(...[...page.querySelector("main").children].filter(({ tagName }) => tagName === "SECTION" || tagName === "DIV"));
  const own = body.querySelector(":scope > .evidence");
  if (own && evidence) own.replaceWith(evidence);
  body.querySelector(".stamps").after(h("p", { className: "row take" },
    reportLink(evaluation, "report.html", "Download the report"), reportLink(evaluation, "report.json", "report.json")));
  body.append(downloads(evaluation));
  return body;
}
