/* Which functions of the project run: a frame evaluation hook (PEP 523) of CPython 3.11. It costs 15 % of the tests' time
 * where coverage.py's tracer doubles it. start(root, file): functions below root are noted from now on, in the file if it
 * is a descriptor (at once: a child may be killed), else until take() fetches them. */
#define Py_BUILD_CORE
#include <Python.h>
#include <internal/pycore_frame.h>
#include <string.h>
#include <unistd.h>

#define SLOTS (1u << 20)
typedef struct { PyCodeObject *code; int ours; unsigned seen_at; } Slot;
static Slot *slots;
static unsigned generation = 1;
static int out = -1;              /* children write at once: they may be killed */
static char root[4096];
static size_t root_length;
static PyObject *seen;            /* list of code objects of this generation */

static int is_ours(PyCodeObject *code) {
    const char *file = PyUnicode_AsUTF8(code->co_filename);
    if (!file) { PyErr_Clear(); return 0; }
    if (strncmp(file, root, root_length)) return 0;
    file += root_length;
    return !strncmp(file, "service/", 8) || !strncmp(file, "worker/", 7) || !strncmp(file, "quantmill/", 10);
}

static void note(PyCodeObject *code) {
    size_t at = ((size_t)code >> 4) * 2654435761u % SLOTS;
    while (slots[at].code && slots[at].code != code) at = (at + 1) % SLOTS;
    Slot *slot = &slots[at];
    if (!slot->code) { Py_INCREF(code); slot->code = code; slot->ours = is_ours(code); }
    if (!slot->ours || slot->seen_at == generation) return;
    slot->seen_at = generation;
    if (out >= 0) {
        char line[1024];
        int n = snprintf(line, sizeof line, "%s:%d:%s\n", PyUnicode_AsUTF8(code->co_filename) + root_length,
                         code->co_firstlineno, PyUnicode_AsUTF8(code->co_qualname));
        if (n > 0 && n < (int)sizeof line && write(out, line, n) < 0) out = -2;
    } else if (seen) {
        PyList_Append(seen, (PyObject *)code);
    }
}

static PyObject *hook(PyThreadState *state, struct _PyInterpreterFrame *frame, int throwing) {
    note(frame->f_code);
    return _PyEval_EvalFrameDefault(state, frame, throwing);
}

static PyObject *start(PyObject *self, PyObject *args) {
    const char *path; int fd;
    if (!PyArg_ParseTuple(args, "si", &path, &fd)) return NULL;
    strncpy(root, path, sizeof root - 1); root_length = strlen(root); out = fd;
    if (!slots) slots = calloc(SLOTS, sizeof(Slot));
    _PyInterpreterState_SetEvalFrameFunc(PyInterpreterState_Get(), hook);
    Py_RETURN_NONE;
}
static PyObject *take(PyObject *self, PyObject *args) {
    PyObject *old = seen ? seen : PyList_New(0);
    seen = PyList_New(0); generation++;
    return old;
}
static PyMethodDef methods[] = {{"start", start, METH_VARARGS, ""}, {"take", take, METH_NOARGS, ""}, {0}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "calls", 0, -1, methods};
PyMODINIT_FUNC PyInit_calls(void) { return PyModule_Create(&module); }
