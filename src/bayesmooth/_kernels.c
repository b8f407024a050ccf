/* The CPU kernels of bayesmooth: standard normals, IVON's sample and IVON's update, each one pass over memory.
 *
 * Noise is a pure function of (seed, step, draw, parameter, element): Threefry4x32-13 (Salmon et al. 2011, "Parallel
 * random numbers: as easy as 1, 2, 3") seeds eight lanes of xoshiro128++ (Blackman & Vigna 2021) anew for every block
 * of 1,024 elements, and Box-Muller turns their words into normals. So it does not depend on threads, a resumed run
 * needs no generator state, and a shard draws just its slice of the whole tensor's noise.
 *
 * A group is 32 elements = 8 lanes x 4 words: loops over lanes are straight-line code that compilers vectorise.
 * Python splits the work over threads (`part` of `parts`) and passes addresses; it has checked types, strides, sizes.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 8
#define GROUP 32
#define BLOCK 1024

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

typedef struct {
    uint32_t key[4];  /* seed, seed >> 32, step, draw */
    uint32_t stream;  /* which parameter */
} Source;

INLINE uint32_t rotl(uint32_t x, int n) { return (x << n) | (x >> (32 - n)); }
INLINE float as_float(uint32_t x) { float f; memcpy(&f, &x, 4); return f; }
INLINE uint32_t as_bits(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }

#define MIX(a, b, r) a += b; b = rotl(b, r) ^ a;
#define EVEN(r, s) MIX(x0, x1, r) MIX(x2, x3, s)
#define ODD(r, s) MIX(x0, x3, r) MIX(x2, x1, s)
#define INJECT(a, b, c, d, n) x0 += a; x1 += b; x2 += c; x3 += d + n;

INLINE void threefry(const uint32_t key[4], const uint32_t counter[4], uint32_t out[4]) {
    const uint32_t k0 = key[0], k1 = key[1], k2 = key[2], k3 = key[3], k4 = 0x1BD11BDAu ^ k0 ^ k1 ^ k2 ^ k3;
    uint32_t x0 = counter[0], x1 = counter[1], x2 = counter[2], x3 = counter[3];
    INJECT(k0, k1, k2, k3, 0)
    EVEN(10, 26) ODD(11, 21) EVEN(13, 27) ODD(23, 5)
    INJECT(k1, k2, k3, k4, 1)
    EVEN(6, 20) ODD(17, 11) EVEN(25, 10) ODD(18, 20)
    INJECT(k2, k3, k4, k0, 2)
    EVEN(10, 26) ODD(11, 21) EVEN(13, 27) ODD(23, 5)
    INJECT(k3, k4, k0, k1, 3)
    EVEN(6, 20)
    out[0] = x0, out[1] = x1, out[2] = x2, out[3] = x3;
}

/* sqrt(-2 log u) for u = (bits + 1/2) / 2^32 with 31 bits kept: at most 6.66. */
INLINE float radius(uint32_t bits) {
    const float u = ((float)(int32_t)(bits >> 1) + 0.5f) * 0x1p-31f;
    const uint32_t b = as_bits(u) - 0x3f3504f3u; /* mantissa into [sqrt 1/2, sqrt 2) */
    const float e = (float)((int32_t)b >> 23);
    const float t = as_float((b & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    float p = -8.101558333e-02f;
    p = p * t + 1.271230768e-01f;
    p = p * t - 1.297223899e-01f;
    p = p * t + 1.420217382e-01f;
    p = p * t - 1.664224760e-01f;
    p = p * t + 2.000146858e-01f;
    p = p * t - 2.500029655e-01f;
    p = p * t + 3.333332860e-01f;
    const float log_u = e * 0.693147181f + (t + t * t * (t * p - 0.5f));
    const float square = -2.0f * log_u;
    return sqrtf(square > 0.0f ? square : 0.0f);
}

/* cos and sin of 2 pi bits / 2^32: the nearest quarter turn by integer arithmetic, the rest by polynomials. */
INLINE void turn(uint32_t bits, float *cosine, float *sine) {
    const uint32_t quarter = (bits + 0x20000000u) >> 30;
    const float a = (float)(int32_t)(bits - (quarter << 30)) * 1.4629180793e-9f;
    const float z = a * a;
    const float s = a + a * z * (-1.666666467e-01f + z * (8.332748635e-03f - z * 1.958794987e-04f));
    const float c = 1.0f - 0.5f * z + z * z * (4.166666466e-02f + z * (-1.388830334e-03f + z * 2.454799131e-05f));
    const uint32_t swap = 0u - (quarter & 1u);
    const uint32_t cb = (as_bits(c) & ~swap) | (as_bits(s) & swap);
    const uint32_t sb = (as_bits(s) & ~swap) | (as_bits(c) & swap);
    *cosine = as_float(cb ^ (((quarter + 1u) & 2u) << 30));
    *sine = as_float(sb ^ ((quarter & 2u) << 30));
}

typedef struct {
    uint32_t a[LANES], b[LANES], c[LANES], d[LANES];
} Lanes;

INLINE void seed_lanes(const Source *source, uint64_t block, Lanes *lanes) {
    for (int j = 0; j < LANES; j++) {
        const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), source->stream, (uint32_t)j};
        uint32_t w[4];
        threefry(source->key, counter, w);
        lanes->a[j] = w[0], lanes->b[j] = w[1], lanes->c[j] = w[2], lanes->d[j] = w[3];
    }
}

#define NEXT(word)                                                            \
    const uint32_t word = rotl(a + d, 7) + a, word##_t = b << 9;              \
    c ^= a, d ^= b, b ^= c, a ^= d, c ^= word##_t, d = rotl(d, 11);

/* The next 32 normals of the block. */
INLINE void normals(Lanes *lanes, float *restrict z) {
    for (int j = 0; j < LANES; j++) {
        uint32_t a = lanes->a[j], b = lanes->b[j], c = lanes->c[j], d = lanes->d[j];
        NEXT(w0) NEXT(w1) NEXT(w2) NEXT(w3)
        lanes->a[j] = a, lanes->b[j] = b, lanes->c[j] = c, lanes->d[j] = d;
        float x, y;
        const float r = radius(w0), q = radius(w2);
        turn(w1, &x, &y);
        z[j] = r * x, z[LANES + j] = r * y;
        turn(w3, &x, &y);
        z[2 * LANES + j] = q * x, z[3 * LANES + j] = q * y;
    }
}

/* ---- one tensor's job, and the walk over its groups ---- */

typedef struct {
    float *param, *mean, *sample, *grad, *momentum, *hess;
    int64_t size, offset; /* elements here; the index of the first in the whole tensor (a shard starts later) */
    Source source;
    float debias;
} Job;

typedef struct {
    float ess, decay, beta1, keep1, keep2, lr, radius, scale, sign;
    int squared;
} Rule;

/* Elements are independent of each other, also where `mean` and `param` are the same memory. */
#if defined(__GNUC__) && !defined(__clang__)
#define INDEPENDENT _Pragma("GCC ivdep")
#elif defined(__clang__)
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT
#endif

/* theta = m + sigma e, sigma = 1 / sqrt(ess (h + decay)); the mean is kept in `mean`. */
INLINE void sample_group(const Job *job, Rule rule, const float *z, int64_t at, int n) {
    float *p = job->param + at, *mean = job->mean + at;
    const float *h = job->hess + at;
    INDEPENDENT for (int i = 0; i < n; i++) {
        const float m = p[i];
        mean[i] = m;
        p[i] = m + rule.sign * z[i] / sqrtf(rule.ess * (h[i] + rule.decay));
    }
}

INLINE void fill_group(const Job *job, Rule rule, const float *z, int64_t at, int n) {
    float *p = job->param + at;
    INDEPENDENT for (int i = 0; i < n; i++) p[i] = rule.sign * z[i];
}

/* Walks over blocks and groups; a shard may start or end inside them. */
#define WALK(name, target, body)                                                                  \
    target static void name(const Job *job, const Rule *rule, int64_t lo, int64_t hi) {           \
        float z[GROUP] = {0};                                                                     \
        Lanes lanes;                                                                              \
        for (int64_t at = lo; at < hi;) {                                                         \
            const int64_t whole = job->offset + at, block = whole / BLOCK;                        \
            int64_t group = block * BLOCK;                                                        \
            seed_lanes(&job->source, (uint64_t)block, &lanes);                                    \
            for (; group < (block + 1) * BLOCK && at < hi; group += GROUP) {                      \
                normals(&lanes, z);                                                               \
                const int64_t skip = job->offset + at - group;                                    \
                if (skip >= GROUP) continue;                                                      \
                const int64_t n = hi - at < GROUP - skip ? hi - at : GROUP - skip;                \
                if (n == GROUP) body(job, *rule, z, at, GROUP);                                   \
                else body(job, *rule, z + skip, at, (int)n);                                      \
                at += n;                                                                          \
            }                                                                                     \
        }                                                                                         \
    }

/* Lines 2 to 7 of alg:ivon after one sample. `sample` and `mean` are read, `param` is one of them and is written. */
#define UPDATE(name, target)                                                                      \
    target static void name(const Job *job, const Rule *given, int64_t lo, int64_t hi) {          \
        const Rule rule = *given;                                                                 \
        float *p = job->param, *momentum = job->momentum, *h = job->hess;                         \
        const float *m = job->mean, *theta = job->sample, *grad = job->grad;                      \
        const float debias = 1.0f / job->debias;                                                  \
        INDEPENDENT for (int64_t i = lo; i < hi; i++) {                                           \
            const float g = grad[i] * rule.scale, precision = h[i] + rule.decay;                  \
            const float price = g * (theta[i] - m[i]) * (rule.ess * precision);                   \
            const float sharpness = rule.squared ? rule.ess * g * g : price;                      \
            const float d = rule.keep2 * (sharpness - h[i]);                                      \
            const float next = h[i] + d + 0.5f * d * d / precision;                               \
            const float velocity = rule.beta1 * momentum[i] + rule.keep1 * g;                     \
            float way = (velocity * debias + rule.decay * m[i]) / (next + rule.decay);            \
            way = way > rule.radius ? rule.radius : way;                                          \
            way = way < -rule.radius ? -rule.radius : way;                                        \
            p[i] = m[i] - rule.lr * way;                                                          \
            momentum[i] = velocity;                                                               \
            h[i] = next;                                                                          \
        }                                                                                         \
    }

/* Exchanges `param` and `mean`. */
static void swap_plain(const Job *job, const Rule *rule, int64_t lo, int64_t hi) {
    (void)rule;
    float *p = job->param, *mean = job->mean;
    INDEPENDENT for (int64_t i = lo; i < hi; i++) {
        const float m = mean[i];
        mean[i] = p[i];
        p[i] = m;
    }
}

typedef void (*Walk)(const Job *, const Rule *, int64_t, int64_t);

WALK(fill_plain, , fill_group)
WALK(sample_plain, , sample_group)
UPDATE(update_plain, )

#if defined(__GNUC__) && defined(__x86_64__)
#define WIDE __attribute__((target("avx2,fma")))
WALK(fill_wide, WIDE, fill_group)
WALK(sample_wide, WIDE, sample_group)
UPDATE(update_wide, WIDE)
#define PICK(name) (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? name##_wide : name##_plain)
#else
#define PICK(name) name##_plain
#endif

/* ---- Python's side ---- */

static void set_source(Job *job, uint64_t seed, uint32_t draw, unsigned long stream, unsigned long step) {
    const Source source = {{(uint32_t)seed, (uint32_t)(seed >> 32), (uint32_t)step, draw}, (uint32_t)stream};
    job->source = source;
}

/* (param, mean, sample, grad, momentum, hess, size, offset, stream, step, debias) */
static int read_job(PyObject *tuple, uint64_t seed, uint32_t draw, Job *job) {
    unsigned long long p, mean, sample, grad, momentum, hess;
    long long size, offset;
    unsigned long stream, step;
    if (!PyArg_ParseTuple(tuple, "KKKKKKLLkkf", &p, &mean, &sample, &grad, &momentum, &hess, &size, &offset, &stream, &step,
                          &job->debias))
        return 0;
    job->param = (float *)(uintptr_t)p, job->mean = (float *)(uintptr_t)mean, job->grad = (float *)(uintptr_t)grad;
    job->sample = (float *)(uintptr_t)sample, job->momentum = (float *)(uintptr_t)momentum, job->hess = (float *)(uintptr_t)hess;
    job->size = size, job->offset = offset;
    set_source(job, seed, draw, stream, step);
    return 1;
}

/* (address, size, offset, stream, step): a tensor to be filled with noise */
static int read_target(PyObject *tuple, uint64_t seed, uint32_t draw, Job *job) {
    unsigned long long address;
    long long size, offset;
    unsigned long stream, step;
    if (!PyArg_ParseTuple(tuple, "KLLkk", &address, &size, &offset, &stream, &step)) return 0;
    job->param = (float *)(uintptr_t)address, job->size = size, job->offset = offset;
    set_source(job, seed, draw, stream, step);
    return 1;
}

/* Where a part starts: at a block of the whole tensor, so that every element is computed alike however work is split. */
static int64_t cut(const Job *job, int part, int parts) {
    const int64_t at = job->size * part / parts, start = at - (job->offset + at) % BLOCK;
    return part == parts ? job->size : start < 0 ? 0 : start;
}

typedef struct {
    PyObject *list;
    unsigned long long seed;
    unsigned long draw;
    int part, parts;
} Call;

typedef int (*Read)(PyObject *, uint64_t, uint32_t, Job *);

/* The part's share of every job, without the interpreter's lock. */
static PyObject *run(const Call *call, Read read, Walk walk, const Rule *rule) {
    const Py_ssize_t count = PyList_Size(call->list);
    Job *jobs = PyMem_Malloc((count ? (size_t)count : 1) * sizeof(Job));
    if (!jobs) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++)
        if (!read(PyList_GetItem(call->list, i), call->seed, (uint32_t)call->draw, &jobs[i])) {
            PyMem_Free(jobs);
            return NULL;
        }
    Py_BEGIN_ALLOW_THREADS;
    for (Py_ssize_t i = 0; i < count; i++)
        walk(&jobs[i], rule, cut(&jobs[i], call->part, call->parts), cut(&jobs[i], call->part + 1, call->parts));
    Py_END_ALLOW_THREADS;
    PyMem_Free(jobs);
    Py_RETURN_NONE;
}

/* (targets, seed, draw, part, parts, sign) */
static PyObject *py_fill(PyObject *self, PyObject *args) {
    (void)self;
    Call call;
    Rule rule = {0};
    if (!PyArg_ParseTuple(args, "O!Kkiif", &PyList_Type, &call.list, &call.seed, &call.draw, &call.part, &call.parts,
                          &rule.sign))
        return NULL;
    return run(&call, read_target, PICK(fill), &rule);
}

/* (jobs, seed, draw, part, parts, rule) */
static PyObject *run_ivon(PyObject *args, Walk walk) {
    Call call;
    Rule rule;
    if (!PyArg_ParseTuple(args, "O!Kkii(fffffffffp)", &PyList_Type, &call.list, &call.seed, &call.draw, &call.part,
                          &call.parts, &rule.ess, &rule.decay, &rule.beta1, &rule.keep1, &rule.keep2, &rule.lr,
                          &rule.radius, &rule.scale, &rule.sign, &rule.squared))
        return NULL;
    return run(&call, read_job, walk, &rule);
}

static PyObject *py_sample(PyObject *self, PyObject *args) { (void)self; return run_ivon(args, PICK(sample)); }
static PyObject *py_swap(PyObject *self, PyObject *args) { (void)self; return run_ivon(args, swap_plain); }
static PyObject *py_update(PyObject *self, PyObject *args) { (void)self; return run_ivon(args, PICK(update)); }

/* threefry(key, counter) -> four words: for the known-answer test. */
static PyObject *py_threefry(PyObject *self, PyObject *args) {
    (void)self;
    uint32_t key[4], counter[4], out[4];
    if (!PyArg_ParseTuple(args, "(IIII)(IIII)", &key[0], &key[1], &key[2], &key[3], &counter[0], &counter[1],
                          &counter[2], &counter[3]))
        return NULL;
    threefry(key, counter, out);
    return Py_BuildValue("(IIII)", out[0], out[1], out[2], out[3]);
}

static PyMethodDef methods[] = {{"fill", py_fill, METH_VARARGS, "param = e"},
                                {"sample", py_sample, METH_VARARGS, "mean = param; param = mean + sigma e"},
                                {"swap", py_swap, METH_VARARGS, "param, mean = mean, param"},
                                {"update", py_update, METH_VARARGS, "IVON's update after one sample"},
                                {"threefry", py_threefry, METH_VARARGS, "one block of random words"},
                                {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_kernels", NULL, -1, methods, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__kernels(void) { return PyModule_Create(&module); }
