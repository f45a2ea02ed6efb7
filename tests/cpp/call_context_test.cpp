// The call context: what a call reads is propagated to enclosing calls, and settings that are read enter the cache key.
#include "testing.h"

#include <torchfake/core/call_context.h>
#include <torchfake/core/kernel_environment.h>

namespace torchfake::testing {

TEST(CallContext, IsTheInnermostOne) {
  EXPECT_EQ(CallContext::current(), nullptr);
  {
    const CallContext outer;
    EXPECT_EQ(CallContext::current(), &outer);
    {
      const CallContext inner;
      EXPECT_EQ(CallContext::current(), &inner);
    }
    EXPECT_EQ(CallContext::current(), &outer);
  }
  EXPECT_EQ(CallContext::current(), nullptr);
}

TEST(CallContext, MergesIntoTheOneAroundItAlsoByAnException) {
  CallContext outer;
  {
    CallContext inner;
    inner.settings = 1;
  }
  EXPECT_EQ(outer.settings, 1U);
  EXPECT_FALSE(outer.is_unkeyed);
  EXPECT_THROW(
      {
        CallContext inner;
        inner.is_unkeyed = true;
        inner.settings = 4;
        throw std::runtime_error("no");
      },
      std::runtime_error);
  EXPECT_EQ(outer.settings, 5U);
  EXPECT_TRUE(outer.is_unkeyed);
  const CallContext next;
  EXPECT_FALSE(next.is_unkeyed);
}

TEST(CallContext, ANewOneIsNotInsideAKernel) {
  const CallContext outer;
  const InKernel in_kernel;
  EXPECT_TRUE(InKernel::active());
  const CallContext inner;
  EXPECT_FALSE(InKernel::active());
}

TEST(KernelEnvironment, NotesWhatIsRead) {
  const CallContext call;
  KernelEnvironment::default_dtype();
  EXPECT_EQ(call.settings, 0U);  // part of every key
  KernelEnvironment::threads();
  EXPECT_EQ(call.settings, uint32_t{1} << KernelEnvironment::kThreads);
  KernelEnvironment::note_all();
  EXPECT_EQ(call.settings, KernelEnvironment::kAllSettings);
}

TEST(KernelEnvironment, CanBeReadOutsideOfACall) {
  EXPECT_EQ(KernelEnvironment::threads(), at::get_num_threads());
}

TEST(KernelEnvironment, ValuesChangeWithTheSettingsThatAreAskedForAndNoOthers) {
  uint64_t before[KernelEnvironment::kMostWords];
  uint64_t after[KernelEnvironment::kMostWords];
  const uint32_t cudnn = uint32_t{1} << KernelEnvironment::kCudnn;
  const uint32_t mkldnn = uint32_t{1} << KernelEnvironment::kMkldnn;
  EXPECT_EQ(KernelEnvironment::values(0, before), 0U);
  for (const uint32_t settings : {cudnn, mkldnn}) {
    ASSERT_EQ(KernelEnvironment::values(settings, before), 1U);
    at::globalContext().setUserEnabledCuDNN(false);
    ASSERT_EQ(KernelEnvironment::values(settings, after), 1U);
    at::globalContext().setUserEnabledCuDNN(true);
    EXPECT_EQ(before[0] != after[0], settings == cudnn);
  }
  EXPECT_EQ(KernelEnvironment::values(KernelEnvironment::kAllSettings, after), KernelEnvironment::kMostWords);
}

}  // namespace torchfake::testing
