/* Of nvml.c: what is read from the board's own memory. */
API int nvmlDeviceGetInforomImageVersion(void *device, char *text, unsigned size) {
  REAL(device);
  return snprintf(text, size, "G520.0200.00.05"), OK;
}
API int nvmlDeviceValidateInforom(void *device) {
  REAL(device);
  return fault(p.number, "inforom", NULL, NULL) ? CORRUPT_INFOROM : OK;
}
