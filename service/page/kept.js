/** Inputs are kept in this browser (IndexedDB), so that a reload loses none of them. */

const KINDS = ["image", "text"];

const done = (asked) => new Promise((resolve, reject) => {
  asked.onsuccess = () => resolve(asked.result);
  asked.onerror = () => reject(asked.error);
});

function open() {
  const asked = indexedDB.open("assay", 1);
  asked.onupgradeneeded = () => KINDS.forEach((kind) => asked.result.createObjectStore(kind, { keyPath: "key" }));
  return done(asked);
}

/** Writes what has changed since the last time; `kept` is the label of each stored input, by its key. */
function save(database, { kind, items }, kept, fail) {
  const transaction = database.transaction(kind, "readwrite");
  transaction.onabort = () => fail(transaction.error);
  const store = transaction.objectStore(kind);
  const now = new Set(items.map(({ key }) => key));
  const gone = [...kept.keys()].filter((key) => !now.has(key));
  const changed = items.filter(({ key, label }) => !kept.has(key) || kept.get(key) !== label);
  gone.forEach((key) => { kept.delete(key); store.delete(key); });
  for (const { key, place, name, label, known, path, file, sample } of changed) {
    store.put({ key, place, name, label, known, path, file, sample });
    kept.set(key, label);
  }
}

/**
 * Brings back what was kept of a list, and keeps every change from now on.
 * @param {(record: object) => object} revive makes an input of what was stored.
 * @param {(error: Error) => void} fail hears that the browser stores nothing (any more).
 */
export async function keep(inputs, revive, fail) {
  try {
    const database = await open();
    const records = await done(database.transaction(inputs.kind).objectStore(inputs.kind).getAll());
    const kept = new Map(records.map(({ key, label }) => [key, label]));
    inputs.addEventListener("change", () => {
      try {
        save(database, inputs, kept, fail);
      } catch (error) {
        fail(error);
      }
    });
    inputs.add(records.sort((a, b) => a.place - b.place).map(revive));
  } catch (error) {
    fail(error); // a private window may have no storage
  }
}

const STARTED = "assay-started";
const STARTED_MOST = 500;

const started = () => JSON.parse(localStorage.getItem(STARTED) ?? "[]");

/** A number that differs, in all likelihood, where inputs, labels or their order do. */
const fingerprint = (items) => [...JSON.stringify(items.map(({ key, label }) => [key, label]))].reduce((hash, one) => (Math.imul(hash, 31) + one.codePointAt(0)) | 0, 7);

/** Remembers which inputs an evaluation was started with. */
export function rememberStart(id, items) {
  try {
    localStorage.setItem(STARTED, JSON.stringify([...started(), [id, fingerprint(items)]].slice(-STARTED_MOST)));
  } catch {
    // without storage the page will not know them again, and says so
  }
}

/** Whether these are the inputs, with the labels, that an evaluation was started with in this browser. */
export function startedWith(id, items) {
  try {
    return started().some(([own, print]) => own === id && print === fingerprint(items));
  } catch {
    return false;
  }
}
