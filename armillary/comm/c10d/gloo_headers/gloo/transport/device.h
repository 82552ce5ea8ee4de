// gloo/transport/device.h: declared in gloo/context.h.
#pragma once
