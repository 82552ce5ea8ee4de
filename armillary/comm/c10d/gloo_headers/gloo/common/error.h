// gloo/common/error.h: nothing of it is used; see gloo/context.h.
#pragma once
