/** What a trial can be made of: the attacks, their budgets, and the presets that choose among them. */

const steps = (value) => ({ key: "steps", label: "steps", value, min: 1, max: 1000 });
const queries = (value) => ({ key: "queries", label: "queries", value, min: 1, max: 20000 });

/**
 * What an attack may spend. `chips` are offered to tick, `other` says that any value may be typed,
 * and `number` that the service wants numbers.
 */
export const BUDGETS = {
  eps: { title: "Strength (eps)", hint: "How far each pixel may move. 1/255 is one step of an 8-bit picture.", chips: ["1/255", "2/255", "4/255", "8/255", "16/255", "32/255"], other: "e.g. 0.1, 12/255" },
  severities: { title: "Severity of the corruptions", hint: "From 1, hardly visible, to 5, hard to see through.", chips: ["1", "2", "3", "4", "5"], number: true },
  sigma: { title: "Noise of the smoothing (sigma)", hint: "More noise proves larger radii and costs clean accuracy.", chips: ["0.12", "0.25", "0.5", "1"] },
  rate: { title: "Share of the words", hint: "0.025 is one word in forty.", chips: ["0.025", "0.05", "0.1", "0.25"], other: "e.g. 0.15" },
  edits: { title: "Edits", hint: "How many words or tokens of a text may be changed.", chips: ["1", "2", "3", "5", "8"], other: "e.g. 10", number: true },
};

/** The attacks on images and on texts; `only` is a budget of an attack's own, in place of the shared one. */
export const ATTACKS = {
  image: [
    { name: "fgsm", budget: "eps", title: "FGSM", what: "one step along the gradient’s sign", options: [] },
    { name: "pgd", budget: "eps", title: "PGD", what: "many small steps, each pulled back within eps", options: [steps(20)] },
    { name: "apgd-ce", budget: "eps", title: "APGD-CE", what: "PGD that chooses its own step sizes", options: [steps(100)] },
    { name: "square", budget: "eps", title: "Square", what: "repaints squares and only asks for answers, without gradients", options: [queries(500)] },
    { name: "spsa", budget: "eps", only: "1/255", title: "SPSA", what: "guesses the gradient from answers along random directions", options: [steps(40), { key: "samples", label: "directions", value: 128, min: 1, max: 2048 }] },
    { name: "autoattack", budget: "eps", title: "AutoAttack", what: "four strong attacks in sequence; takes long where the model holds", options: [] },
    { name: "corruptions", budget: "severities", title: "Common corruptions", what: "noise, blur, weather: not aimed at the model", options: [] },
    { name: "smoothing", budget: "sigma", title: "Randomized smoothing", what: "no attack but a proof, for a vote over noisy copies", options: [{ key: "samples", label: "copies", value: 200, min: 10, max: 100000 }] },
  ],
  text: [
    { name: "typos", budget: "edits", title: "Typos", what: "slips of the keyboard in the words that matter most", options: [queries(500)] },
    { name: "hotflip", budget: "edits", title: "HotFlip", what: "exchanges single tokens, led by the gradient", options: [queries(1000)] },
    { name: "word-swap", budget: "rate", title: "Word Swap", what: "random words become “AAA”", options: [] },
  ],
};

/** Where to start from; the first one is chosen when the page is opened. */
export const PRESETS = {
  image: [
    { key: "quick", title: "Quick check", what: "FGSM and PGD at two strengths. Seconds; finds what falls easily.", attacks: { fgsm: {}, pgd: { steps: 10 } }, eps: ["2/255", "8/255"] },
    { key: "paper", title: "Paper’s protocol", what: "As for Elliptical Attention: FGSM and PGD-20 from 1/255 to 6/255, SPSA at 1/255.", attacks: { fgsm: {}, pgd: { steps: 20 }, spsa: { steps: 40, samples: 128, only: "1/255" } }, eps: ["1/255", "2/255", "3/255", "4/255", "5/255", "6/255"] },
    { key: "autoattack", title: "AutoAttack", what: "The standard of the field, at 8/255. Slow, and hard to deceive.", attacks: { autoattack: {} }, eps: ["8/255"] },
    { key: "curve", title: "Whole curve", what: "FGSM and PGD-20 from 1/255 to 16/255.", attacks: { fgsm: {}, pgd: { steps: 20 } }, eps: ["1/255", "2/255", "4/255", "8/255", "16/255"] },
    { key: "damage", title: "Everyday damage", what: "15 corruptions, such as fog, blur and noise. Nobody aims.", attacks: { corruptions: {} }, severities: ["1", "3", "5"] },
    { key: "proof", title: "Proof", what: "Randomized smoothing: what no change within a radius can mislead.", attacks: { smoothing: { samples: 200 } }, sigma: ["0.25"] },
  ],
  text: [
    { key: "quick", title: "Quick check", what: "Up to three typos a text. Seconds; finds what falls easily.", attacks: { typos: { queries: 100 } }, edits: ["1", "3"] },
    { key: "typos", title: "Typos", what: "One to five mistyped words, a thousand tries each.", attacks: { typos: { queries: 1000 } }, edits: ["1", "3", "5"] },
    { key: "hotflip", title: "HotFlip", what: "One to five tokens exchanged along the gradient. The strongest here.", attacks: { hotflip: { queries: 1000 } }, edits: ["1", "3", "5"] },
    { key: "swap", title: "Word Swap", what: "The paper’s protocol: 2.5 % of the words become “AAA”, and more.", attacks: { "word-swap": {} }, rate: ["0.025", "0.1", "0.25"] },
    { key: "all", title: "All three", what: "Typos, HotFlip and Word Swap, one after the other.", attacks: { typos: { queries: 500 }, hotflip: { queries: 1000 }, "word-swap": {} }, edits: ["1", "3"], rate: ["0.025", "0.1"] },
  ],
};
