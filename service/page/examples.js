/** Short reviews to try a model of sentiment with, written for this page. */

export const EXAMPLES = [
  { label: "pos", text: "A wonderful film. The two leads are moving, the music is beautiful, and I left the cinema with a smile." },
  { label: "neg", text: "What a waste of an evening. The plot is dull, the acting is terrible, and nothing in it is worth remembering." },
  { label: "pos", text: "It starts slowly, but give it time: the last half hour is brilliant, funny and sad at once." },
  { label: "neg", text: "I wanted to like it. The idea is good, but the dialogue is awful and the ending makes no sense at all." },
  { label: "pos", text: "Simply the best performance of her career, in a story that is told with great care and warmth." },
  { label: "neg", text: "Badly written, poorly lit and far too long. Even the jokes are boring." },
  { label: "pos", text: "One of those rare films that I could watch again tomorrow. Great fun from the first scene to the last." },
  { label: "neg", text: "The worst sequel in years: no tension, no heart, and a lead who looks as bored as I was." },
];
