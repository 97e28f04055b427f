/** What is dropped or chosen: images, folders and zips of them, and csv files with their labels. */

const IMAGE = /\.(png|jpe?g|jfif|webp|gif|bmp|tiff?|p[bgnp]m|avif|jp2|j2k|hei[cf]|svg)$/i;
const HIDDEN = /(^|\/)(\.|__MACOSX\/)/;
const LABELS = /\.csv$/i;
const MOST = 20_000; // files in folders that are looked at
const LINE = /^\s*(?:"((?:[^"]|"")*)"|([^",;\t]*?))\s*[,;\t]\s*(?:"((?:[^"]|"")*)"|([^",;\t]*?))\s*$/;

/** @typedef {{path: string, file: Blob}} Found   path below what was dropped, its last folder names the class */

const isWanted = (path) => !HIDDEN.test(path) && (IMAGE.test(path) || LABELS.test(path));

/** Collects the files of a dropped folder; what is no image is only counted. */
async function walk(folder, found) {
  const reader = folder.createReader();
  for (;;) {
    const entries = await new Promise((resolve, reject) => { reader.readEntries(resolve, reject); }); // a hundred at most
    if (!entries.length) return;
    for (const entry of entries) {
      if (found.seen++ > MOST) throw new Error(`“${folder.name}” holds more than ${MOST.toLocaleString("en")} files.`);
      if (entry.isDirectory) await walk(entry, found);
      else if (isWanted(entry.fullPath)) found.files.push({ path: entry.fullPath.slice(1), file: await new Promise((resolve, reject) => { entry.file(resolve, reject); }) });
      else if (!HIDDEN.test(entry.fullPath)) found.left += 1;
    }
  }
}

const view = async (blob) => new DataView(await blob.arrayBuffer());

/** The bytes of one file in a zip, unpacked by the browser. */
async function member(zip, path, method, start, size) {
  const head = await view(zip.slice(start, start + 30));
  const begin = start + 30 + head.getUint16(26, true) + head.getUint16(28, true);
  const packed = zip.slice(begin, begin + size);
  if (method === 0) return packed;
  try {
    if (method === 8) return await new Response(packed.stream().pipeThrough(new DecompressionStream("deflate-raw"))).blob();
  } catch { /* said below */ }
  throw new Error(`“${path}” in “${zip.name}” cannot be unpacked.`);
}

/** What a zip holds, by its list of contents: [{path, method, packed, whole, offset}]. */
async function listed(zip) {
  const broken = new Error(`“${zip.name}” is not a zip file that can be read here.`);
  const tail = await view(zip.slice(-65_557));
  let end = tail.byteLength - 22;
  while (end >= 0 && tail.getUint32(end, true) !== 0x06054b50) end -= 1;
  if (end < 0) throw broken;
  const [size, start] = [tail.getUint32(end + 12, true), tail.getUint32(end + 16, true)];
  const list = await view(zip.slice(start, start + size));
  const entries = [];
  for (let at = 0; at + 46 <= list.byteLength;) {
    if (list.getUint32(at, true) !== 0x02014b50) throw broken;
    const [method, packed, whole, offset] = [list.getUint16(at + 10, true), list.getUint32(at + 20, true), list.getUint32(at + 24, true), list.getUint32(at + 42, true)];
    const [name, extra, comment] = [28, 30, 32].map((field) => list.getUint16(at + field, true));
    const path = new TextDecoder().decode(new Uint8Array(list.buffer, at + 46, name));
    at += 46 + name + extra + comment;
    if (!HIDDEN.test(path) && !path.endsWith("/")) entries.push({ path, method, packed, whole, offset });
  }
  return entries;
}

/** The names of the images in a zip of `images/` and `masks/`; the service says what is wrong with them. */
export async function pairsIn(zip) {
  const paths = (await listed(zip)).map(({ path }) => path);
  const names = paths.filter((path) => /(^|\/)images\//.test(path) && IMAGE.test(path));
  if (!names.length) throw new Error(`“${zip.name}” holds no folder “images” with images; it needs “images” and “masks”.`);
  return names.sort();
}

/** Collects the files of a zip. */
async function unzip(zip, found, mostBytes) {
  const all = await listed(zip);
  const entries = all.filter(({ path }) => isWanted(path));
  found.left += all.length - entries.length;
  const unpacked = entries.reduce((sum, { whole }) => sum + whole, 0);
  if (unpacked > mostBytes) throw new Error(`“${zip.name}” unpacks to more than ${mostBytes / 1_000_000} MB.`);
  for (const { path, method, offset, packed } of entries) found.files.push({ path, file: await member(zip, path, method, offset, packed) });
}

/** The labels by file name in the lines `file,label` of a csv file. */
async function readLabels({ path, file }, labels) {
  const lines = (await file.text()).split(/\r?\n/);
  lines.forEach((line, i) => {
    if (!line.trim()) return;
    const match = LINE.exec(line);
    if (!match) throw new Error(`Line ${i + 1} of “${path}” is not “file,label”.`);
    const [name, label] = [match[1] ?? match[2], match[3] ?? match[4]].map((cell) => cell.replaceAll('""', '"').trim());
    if (i || label.toLowerCase() !== "label") labels.set(name, label);
  });
}

/**
 * Opens folders, zips and csv files. What is named directly counts as an image, whatever it is called: the service says what is wrong with it.
 * @param {(File | FileSystemDirectoryEntry)[]} given
 * @param {number} mostBytes that a zip may unpack to.
 * @returns {Promise<{images: Found[], labels: Map<string, string>, left: number}>} `left`: files in folders that are no images.
 */
export async function openFiles(given, mostBytes) {
  const found = { files: [], left: 0, seen: 0 };
  for (const one of given) {
    const path = one.webkitRelativePath || one.name || "pasted.png";
    if (one.isDirectory) await walk(one, found);
    else if (/\.zip$/i.test(path)) await unzip(one, found, mostBytes);
    else if (!one.webkitRelativePath || isWanted(path)) found.files.push({ path, file: one });
    else if (!HIDDEN.test(path)) found.left += 1;
  }
  const labels = new Map();
  for (const table of found.files.filter(({ path }) => LABELS.test(path))) await readLabels(table, labels);
  const images = found.files.filter(({ path }) => !LABELS.test(path));
  return { images: images.sort((a, b) => (a.path < b.path ? -1 : 1)), labels, left: found.left };
}
