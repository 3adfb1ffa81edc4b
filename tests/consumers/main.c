/*
 * What the consumer projects build: attention of one query over two keys.
 */
#include <flashattn.h>

#include <stdio.h>
#include <stdlib.h>

int main(void) {
    float q[1] = {0}, k[2] = {1, 2}, v[2] = {3, 5}, o[1] = {0};
    flash_forward_args_t args = FLASH_FORWARD_ARGS_INIT;
    args.dtype = FLASH_DTYPE_FP32;
    args.q = flash_tensor_bshd(q, 1, 1, 1);
    args.k = flash_tensor_bshd(k, 2, 1, 1);
    args.v = flash_tensor_bshd(v, 2, 1, 1);
    args.o = flash_tensor_bshd(o, 1, 1, 1);
    args.batch = args.seqlen_q = args.n_heads = args.n_heads_kv = args.d_head = 1;
    args.seqlen_k = 2;
    if (flash_workspace_size(&args, NULL, &args.workspace_size) != FLASH_SUCCESS)
        return 1;
    args.workspace = malloc((size_t)args.workspace_size + 1);
    if (flash_forward(&args, NULL, NULL) != FLASH_SUCCESS) {
        fprintf(stderr, "%s\n", flash_last_error());
        return 1;
    }
    free(args.workspace);
    printf("flashattn %s: the mean of 3 and 5 is %g\n", flash_version(), (double)o[0]);
    return o[0] == 4.0f ? 0 : 1;
}
