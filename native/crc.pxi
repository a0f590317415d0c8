# CRC-32 of pages, as Parquet wants it (the polynomial of gzip), by carry-less multiplication where the processor has it:
# 64 bytes are folded at a time, as in Intel's paper on CRC computation with PCLMULQDQ. Elsewhere by eight tables.

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    static uint32_t crc_tables[8][256];

    static void crc_prepare(void) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t value = i;
            for (int bit = 0; bit < 8; bit++)
                value = (value >> 1) ^ (value & 1 ? 0xEDB88320u : 0);
            crc_tables[0][i] = value;
        }
        for (int table = 1; table < 8; table++)
            for (uint32_t i = 0; i < 256; i++) {
                uint32_t before = crc_tables[table - 1][i];
                crc_tables[table][i] = (before >> 8) ^ crc_tables[0][before & 255];
            }
    }

    static uint32_t crc_by_tables(uint32_t crc, const uint8_t* p, size_t size) {
        while (size >= 8) {
            uint32_t low, high;
            memcpy(&low, p, 4);
            memcpy(&high, p + 4, 4);
            low ^= crc;
            crc = crc_tables[7][low & 255] ^ crc_tables[6][(low >> 8) & 255] ^ crc_tables[5][(low >> 16) & 255]
                ^ crc_tables[4][low >> 24] ^ crc_tables[3][high & 255] ^ crc_tables[2][(high >> 8) & 255]
                ^ crc_tables[1][(high >> 16) & 255] ^ crc_tables[0][high >> 24];
            p += 8;
            size -= 8;
        }
        while (size--)
            crc = (crc >> 8) ^ crc_tables[0][(crc ^ *p++) & 255];
        return crc;
    }

    #if defined(__x86_64__)
    #include <immintrin.h>
    #define CRC_FOLD(x, k, next) _mm_xor_si128(_mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), \\
                                                             _mm_clmulepi64_si128(x, k, 0x11)), next)

    /* size is a multiple of 16 and at least 64 */
    __attribute__((target("pclmul,sse4.1")))
    static uint32_t crc_by_folding(uint32_t crc, const uint8_t* p, size_t size) {
        const __m128i by_four = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), by_one = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
        const __m128i last = _mm_set_epi64x(0, 0x163cd6124), barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);
        const __m128i halves = _mm_setr_epi32(~0, 0, ~0, 0);
        const __m128i* in = (const __m128i*)p;
        __m128i a = _mm_xor_si128(_mm_loadu_si128(in), _mm_cvtsi32_si128((int)crc)), b = _mm_loadu_si128(in + 1);
        __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3), x;
        for (in += 4, size -= 64; size >= 64; in += 4, size -= 64) {
            a = CRC_FOLD(a, by_four, _mm_loadu_si128(in));
            b = CRC_FOLD(b, by_four, _mm_loadu_si128(in + 1));
            c = CRC_FOLD(c, by_four, _mm_loadu_si128(in + 2));
            d = CRC_FOLD(d, by_four, _mm_loadu_si128(in + 3));
        }
        a = CRC_FOLD(a, by_one, b);
        a = CRC_FOLD(a, by_one, c);
        a = CRC_FOLD(a, by_one, d);
        for (; size >= 16; in++, size -= 16)
            a = CRC_FOLD(a, by_one, _mm_loadu_si128(in));
        a = _mm_xor_si128(_mm_srli_si128(a, 8), _mm_clmulepi64_si128(a, by_one, 0x10));
        a = _mm_xor_si128(_mm_srli_si128(a, 4), _mm_clmulepi64_si128(_mm_and_si128(a, halves), last, 0x00));
        x = _mm_clmulepi64_si128(_mm_and_si128(a, halves), barrett, 0x10);
        x = _mm_clmulepi64_si128(_mm_and_si128(x, halves), barrett, 0x00);
        return (uint32_t)_mm_extract_epi32(_mm_xor_si128(a, x), 1);
    }
    static int crc_can_fold(void) { return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1"); }
    #else
    static uint32_t crc_by_folding(uint32_t crc, const uint8_t* p, size_t size) { return crc_by_tables(crc, p, size); }
    static int crc_can_fold(void) { return 0; }
    #endif

    static int crc_folds = 0;

    static uint32_t crc32_of(const uint8_t* p, size_t size) {
        uint32_t crc = ~0u;
        if (crc_folds && size >= 64) {
            size_t folded = size & ~(size_t)15;
            crc = crc_by_folding(crc, p, folded);
            p += folded;
            size -= folded;
        }
        return ~crc_by_tables(crc, p, size);
    }
    """
    void crc_prepare() noexcept nogil
    int crc_can_fold() noexcept nogil
    int crc_folds
    uint32_t crc32_of(const uint8_t* p, size_t size) noexcept nogil


crc_prepare()
crc_folds = crc_can_fold()
