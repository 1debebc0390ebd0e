// Functions of the driver that torch asks for by name but that do not work here.
#define NONE(name) \
  extern "C" __attribute__((visibility("default"))) int name() { return 801; }
NONE(cuStreamWriteValue32)
NONE(cuStreamWriteValue32_v2) NONE(cuCtxFromGreenCtx) NONE(cuDevResourceGenerateDesc)
    NONE(cuDevSmResourceSplitByCount) NONE(cuDeviceGetDevResource) NONE(cuGreenCtxCreate)
        NONE(cuGreenCtxDestroy) NONE(cuGreenCtxStreamCreate) NONE(cuMulticastAddDevice)
            NONE(cuMulticastBindMem) NONE(cuMulticastCreate) NONE(cuMulticastUnbind)
                NONE(cuStreamGetGreenCtx) NONE(cuDeviceGetP2PAttribute)
// triton's launcher links these
#define FINE(name) \
  extern "C" __attribute__((visibility("default"))) int name() { return 0; }
                    FINE(cuCtxSetLimit) FINE(cuCtxGetLimit) FINE(cuDeviceGetPCIBusId)
                        FINE(cuMemcpyHtoD_v2) FINE(cuMemcpyDtoH_v2) FINE(cuMemAdvise)
