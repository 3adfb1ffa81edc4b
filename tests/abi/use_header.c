/*
 * A program that uses every INIT macro of the public header; it is compiled without a warning in
 * every dialect of C and C++ that the header promises.
 */
#include "flashattn.h"

flash_config_t config = FLASH_CONFIG_INIT;
flash_tensor_t tensor = FLASH_TENSOR_INIT;
flash_device_info_t info = FLASH_DEVICE_INFO_INIT;
flash_kernel_resources_t resources = FLASH_KERNEL_RESOURCES_INIT;
flash_forward_args_t forward_args = FLASH_FORWARD_ARGS_INIT;
flash_backward_args_t backward_args = FLASH_BACKWARD_ARGS_INIT;
flash_paging_t paging = FLASH_PAGING_INIT;
flash_quant_t quant = FLASH_QUANT_INIT;
flash_dropout_t dropout = FLASH_DROPOUT_INIT;
flash_combine_args_t combine_args = FLASH_COMBINE_ARGS_INIT;
flash_quantise_args_t quantise_args = FLASH_QUANTISE_ARGS_INIT;
flash_rotary_t rotary = FLASH_ROTARY_INIT;
flash_kv_append_args_t append_args = FLASH_KV_APPEND_ARGS_INIT;

int main(void) {
    flash_config_t local_config = FLASH_CONFIG_INIT;
    float data[2] = {0, 0};
    flash_tensor_t local_tensor = FLASH_TENSOR_INIT;
    flash_device_info_t local_info = FLASH_DEVICE_INFO_INIT;
    flash_forward_args_t local_forward_args = FLASH_FORWARD_ARGS_INIT;
    flash_backward_args_t local_backward_args = FLASH_BACKWARD_ARGS_INIT;
    flash_paging_t local_paging = FLASH_PAGING_INIT;
    flash_quant_t local_quant = FLASH_QUANT_INIT;
    flash_dropout_t local_dropout = FLASH_DROPOUT_INIT;
    flash_combine_args_t local_combine_args = FLASH_COMBINE_ARGS_INIT;
    flash_quantise_args_t local_quantise_args = FLASH_QUANTISE_ARGS_INIT;
    flash_rotary_t local_rotary = FLASH_ROTARY_INIT;
    flash_kv_append_args_t local_append_args = FLASH_KV_APPEND_ARGS_INIT;
    local_forward_args.q = local_tensor;
    local_forward_args.paging = &local_paging;
    local_forward_args.quant = &local_quant;
    local_forward_args.dropout = &local_dropout;
    local_forward_args.k = flash_tensor_bshd(data, 1, 1, 2);
    local_forward_args.v = flash_tensor_bhsd(data, 1, 1, 2);
    local_backward_args.forward = &local_forward_args;
    local_combine_args.o = local_tensor;
    local_quantise_args.x = local_tensor;
    local_append_args.rotary = &local_rotary;
    return flash_forward(&local_forward_args, flash_lookup_kernel(&local_config), FLASH_NULL_) ==
               FLASH_SUCCESS &&
           flash_backward(&local_backward_args, FLASH_NULL_) == FLASH_SUCCESS &&
           flash_combine(&local_combine_args, FLASH_NULL_) == FLASH_SUCCESS &&
           flash_quantise(&local_quantise_args, FLASH_NULL_) == FLASH_SUCCESS &&
           flash_kv_append(&local_append_args, FLASH_NULL_) == FLASH_SUCCESS &&
           flash_device_info(FLASH_DEVICE_CPU, &local_info) == FLASH_SUCCESS;
}
