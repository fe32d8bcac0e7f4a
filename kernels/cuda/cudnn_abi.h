/* The part of cuDNN 9's backend interface that is used, declared here so that neither its headers nor the library are
 * needed to build: the library is loaded at run time. Names and values as in cudnn_graph.h, which keeps them stable. */
#ifndef VLA_CUDNN_ABI_H
#define VLA_CUDNN_ABI_H
#include <stdint.h>

typedef void *cudnn_handle;
typedef void *cudnn_descriptor;

enum { CUDNN_STATUS_SUCCESS = 0, CUDNN_REDUCE_ADD = 0, CUDNN_REDUCE_MAX = 3, CUDNN_HEUR_MODE_A = 3 };
enum { CUDNN_FLOAT = 0, CUDNN_HALF = 2, CUDNN_INT32 = 4, CUDNN_BFLOAT16 = 9, CUDNN_BOOLEAN = 11 };
enum {
    CUDNN_ADD = 0,
    CUDNN_MUL = 1,
    CUDNN_DIV = 6,
    CUDNN_SUB = 9,
    CUDNN_EXP = 13,
    CUDNN_LOG = 15,
    CUDNN_CMP_GE = 303,
    CUDNN_GEN_INDEX = 501,
    CUDNN_SELECT = 601
};
enum {
    TYPE_HANDLE = 0,
    TYPE_DATA_TYPE = 1,
    TYPE_BOOLEAN = 2,
    TYPE_INT64 = 3,
    TYPE_VOID_PTR = 6,
    TYPE_HEUR_MODE = 8,
    TYPE_POINTWISE_MODE = 14,
    TYPE_DESCRIPTOR = 15,
    TYPE_REDUCTION_OPERATOR = 18
};
enum {
    DESC_POINTWISE = 0,
    DESC_ENGINECFG = 3,
    DESC_ENGINEHEUR = 4,
    DESC_PLAN = 5,
    DESC_OP_POINTWISE = 13,
    DESC_GRAPH = 15,
    DESC_VARIANT_PACK = 16,
    DESC_TENSOR = 17,
    DESC_MATMUL = 18,
    DESC_OP_MATMUL = 19,
    DESC_REDUCTION = 21,
    DESC_OP_REDUCTION = 22
};
enum {
    ATTR_POINTWISE_MODE = 0,
    ATTR_POINTWISE_MATH = 1,
    ATTR_POINTWISE_AXIS = 9,
    ATTR_HEUR_MODE = 200,
    ATTR_HEUR_GRAPH = 201,
    ATTR_HEUR_RESULTS = 202,
    ATTR_PLAN_HANDLE = 400,
    ATTR_PLAN_CONFIG = 401,
    ATTR_PLAN_WORKSPACE = 402,
    ATTR_OP_POINTWISE_PW = 750,
    ATTR_OP_POINTWISE_X = 751,
    ATTR_OP_POINTWISE_B = 752,
    ATTR_OP_POINTWISE_Y = 753,
    ATTR_OP_POINTWISE_T = 758,
    ATTR_GRAPH_HANDLE = 800,
    ATTR_GRAPH_OPS = 801,
    ATTR_TENSOR_ALIGNMENT = 900,
    ATTR_TENSOR_TYPE = 901,
    ATTR_TENSOR_DIMENSIONS = 902,
    ATTR_TENSOR_STRIDES = 903,
    ATTR_TENSOR_ID = 906,
    ATTR_TENSOR_VIRTUAL = 907,
    ATTR_TENSOR_BY_VALUE = 908,
    ATTR_PACK_IDS = 1000,
    ATTR_PACK_POINTERS = 1001,
    ATTR_PACK_WORKSPACE = 1003,
    ATTR_MATMUL_TYPE = 1500,
    ATTR_OP_MATMUL_A = 1520,
    ATTR_OP_MATMUL_B = 1521,
    ATTR_OP_MATMUL_C = 1522,
    ATTR_OP_MATMUL_DESC = 1523,
    ATTR_REDUCTION_OPERATOR = 1600,
    ATTR_REDUCTION_TYPE = 1601,
    ATTR_OP_REDUCTION_X = 1610,
    ATTR_OP_REDUCTION_Y = 1611,
    ATTR_OP_REDUCTION_DESC = 1612
};

typedef struct cudnn_library {
    void *library;
    int (*create)(cudnn_handle *handle);
    int (*destroy)(cudnn_handle handle);
    int (*set_stream)(cudnn_handle handle, void *stream);
    size_t (*version)(void);
    void (*last_error)(char *message, size_t size);
    int (*make)(int type, cudnn_descriptor *descriptor);
    int (*unmake)(cudnn_descriptor descriptor);
    int (*set)(cudnn_descriptor d, int name, int type, int64_t count, const void *elements);
    int (*get)(cudnn_descriptor d, int name, int type, int64_t asked, int64_t *count, void *elements);
    int (*finalize)(cudnn_descriptor descriptor);
    int (*execute)(cudnn_handle handle, cudnn_descriptor plan, cudnn_descriptor pack);
} cudnn_library;

#endif
