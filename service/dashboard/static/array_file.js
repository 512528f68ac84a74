// What a file of arrays says of itself, read in the browser before anything is sent: names, types, shapes, ranges.
const LOOKED_AT_BYTES = 1024 * 1024, TAIL_BYTES = 66 * 1024;
const KINDS = {
  u1: Uint8Array, i1: Int8Array, u2: Uint16Array, i2: Int16Array, u4: Uint32Array, i4: Int32Array,
  u8: BigUint64Array, i8: BigInt64Array, f4: Float32Array, f8: Float64Array,
};
const NAMES = { u: "uint", i: "int", f: "float", b: "bool" };
const SAFETENSORS = { U8: "u1", I8: "i1", U16: "u2", I16: "i2", U32: "u4", I32: "i4", U64: "u8", I64: "i8", F16: "f2", F32: "f4", F64: "f8" };

const bytesOf = async (file, from, to) => new DataView(await file.slice(from, to).arrayBuffer());
const text = view => new TextDecoder().decode(view);

// The least and the greatest of the values at the beginning; of other kinds nothing.
const array = (name, kind, shape, view, from) => {
  const made = { name, dtype: NAMES[kind[0]] ? `${NAMES[kind[0]]}${kind[0] === "b" ? "" : 8 * kind[1]}` : kind, shape };
  const Values = KINDS[kind];
  if (!Values) return made;
  const count = Math.min(Math.floor((view.byteLength - from) / Values.BYTES_PER_ELEMENT), shape.reduce((a, b) => a * b, 1));
  const start = view.byteOffset + from;
  const values = new Values(view.buffer.slice(start, start + count * Values.BYTES_PER_ELEMENT));
  for (const one of values) {
    if (made.low === undefined || one < made.low) made.low = one;
    if (made.high === undefined || one > made.high) made.high = one;
  }
  return made;
};

const npy = (name, view) => {
  const long = view.getUint8(6) > 1, from = (long ? 12 : 10) + (long ? view.getUint32(8, true) : view.getUint16(8, true));
  const header = text(new DataView(view.buffer, view.byteOffset, from));
  const [, kind] = header.match(/'descr': '[<|=]?(\w+)'/), [, shape] = header.match(/'shape': \(([^)]*)\)/);
  return array(name, kind, shape.split(",").map(one => one.trim()).filter(Boolean).map(Number), view, from);
};

// The beginning of a member of a ZIP file.
const member = async (file, at, method, size) => {
  const head = await bytesOf(file, at, at + 30), from = at + 30 + head.getUint16(26, true) + head.getUint16(28, true);
  const stored = file.slice(from, from + Math.min(size, LOOKED_AT_BYTES));
  if (method === 0) return new DataView(await stored.arrayBuffer());
  const reader = stored.stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader(), parts = [];
  try {
    for (let read = 0; read < LOOKED_AT_BYTES;) {
      const { done, value } = await reader.read();
      if (done) break;
      parts.push(value);
      read += value.byteLength;
    }
  } catch (error) {
    if (!parts.length) throw error;  // the end of the stream was cut off on purpose
  }
  await reader.cancel().catch(() => null);
  return new DataView(await new Blob(parts).arrayBuffer());
};

const npz = async file => {
  const tail = await bytesOf(file, Math.max(0, file.size - TAIL_BYTES), file.size);
  let end = tail.byteLength - 22;
  while (end >= 0 && tail.getUint32(end, true) !== 0x06054b50) end--;
  if (end < 0) return [];
  const at = tail.getUint32(end + 16, true), list = await bytesOf(file, at, at + tail.getUint32(end + 12, true)), found = [];
  for (let place = 0; place + 46 <= list.byteLength && list.getUint32(place, true) === 0x02014b50;) {
    const length = list.getUint16(place + 28, true);
    const name = text(new DataView(list.buffer, place + 46, length));
    const view = await member(file, list.getUint32(place + 42, true), list.getUint16(place + 10, true), list.getUint32(place + 20, true));
    if (name.endsWith(".npy")) found.push(npy(name.slice(0, -4), view));
    place += 46 + length + list.getUint16(place + 30, true) + list.getUint16(place + 32, true);
  }
  return found;
};

const safetensors = async file => {
  const size = Number((await bytesOf(file, 0, 8)).getBigUint64(0, true)), start = 8 + size, found = [];
  for (const [name, one] of Object.entries(JSON.parse(text(await bytesOf(file, 8, start))))) {
    if (name === "__metadata__") continue;
    const [from, to] = one.data_offsets;
    const view = await bytesOf(file, start + from, start + Math.min(to, from + LOOKED_AT_BYTES));
    found.push(array(name, SAFETENSORS[one.dtype] || one.dtype, one.shape, view, 0));
  }
  return found;
};

// Of a file that cannot be read here nothing is known; the service validates it in any case.
export const arraysOf = async file => {
  const name = file.name.toLowerCase();
  try {
    return name.endsWith(".npz") ? await npz(file) : name.endsWith(".safetensors") ? await safetensors(file) : [];
  } catch (error) {
    console.info(`${file.name}: ${error.message}`);
    return [];
  }
};

export const words = one => {
  const range = one.low === undefined ? "" : `, ${Number(one.low).toPrecision(3) / 1} to ${Number(one.high).toPrecision(3) / 1}`;
  return `${one.name} (${one.dtype}, ${one.shape.join(" × ") || "scalar"}${range})`;
};

// The one array that looks like images of 0 to 255, and how it lies; null: none does, or several do.
export const images = arrays => {
  const all = arrays.filter(({ shape, low, high }) => [3, 4].includes(shape.length) && low >= 0 && high > 2 && high <= 255 && shape.at(-1) * shape.at(-2) >= 16);
  const seen = all.filter(({ dtype, high }) => dtype === "uint8" || high > 100);
  if (seen.length !== 1) return null;
  const { name, shape } = seen[0], colour = size => size === 1 || size === 3;
  const layout = shape.length === 3 ? "NHW" : colour(shape[3]) ? "NHWC" : colour(shape[1]) ? "NCHW" : null;
  const channels = layout === "NHWC" ? shape[3] : layout === "NCHW" ? shape[1] : 1;
  const side = layout === "NHWC" ? shape[1] : shape.at(-1);
  return layout && { array: name, layout, channels, side };
};
